"""What an operator decides for a tenant, so that it stays on record: one function for each transaction."""

from datetime import datetime

from sqlalchemy import Connection

from service.domain.events import FLEET, OnUpgrade, TenantId
from service.domain.fleet_events import TenantPolicySet
from service.store import event_store, tenants
from service.store.tenants import TenantRecord


def set_policy(
    conn: Connection, tenant: TenantId, on_upgrade: OnUpgrade | None, *, by: str, now: datetime
) -> TenantRecord:
    """It holds from the next turn on. Where nothing changes, nothing is recorded.

    Raises:
        NotFound: no such tenant.
    """
    previous = tenants.hold_policy(conn, tenant)
    if on_upgrade != previous:
        tenants.set_policy(conn, tenant, on_upgrade)
        stream = f"tenant/{tenant}"
        changed = TenantPolicySet(tenant=tenant, on_upgrade=on_upgrade, previous=previous, by=by)
        version = len(event_store.read(conn, tenant=FLEET, stream=stream))
        event_store.append(
            conn, tenant=FLEET, stream=stream, expected_version=version, events=[changed], now=now
        )
    return tenants.find_tenant(conn, tenant)
