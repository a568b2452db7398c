"""What each tenant may use, and how much of it each uses now."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from service.domain.errors import NotFound
from service.domain.events import OnUpgrade, TenantId
from service.domain.limits import Limits
from service.store.constraints import broken_constraint
from service.store.tables import turns
from service.store.tenant_tables import TENANT_OF_LIMITS, tenant_limits, tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    tenant: TenantId
    on_upgrade: OnUpgrade | None
    created_at: datetime
    limits: Limits


CONVERSATIONS = text("""
    SELECT count(*) FILTER (WHERE type = 'conversation.created')
         - count(DISTINCT stream) FILTER (WHERE type <> 'conversation.created')
    FROM events
    WHERE tenant_id = :tenant AND type IN ('conversation.created', 'conversation.deleted', 'conversation.erased')
""")

# Two requests at once must not both find the last place free.
COUNT_ALONE = text("SELECT pg_advisory_xact_lock(hashtextextended('limits', hashtextextended(:tenant, 0)))")


def set_limits(conn: Connection, tenant: TenantId, limits: Limits, *, by: str, now: datetime) -> None:
    """In place of those it had.

    Raises:
        NotFound: no such tenant.
    """
    values = asdict(limits) | {"set_at": now, "set_by": by}
    statement = (
        insert(tenant_limits)
        .values(tenant_id=tenant, **values)
        .on_conflict_do_update(index_elements=[tenant_limits.c.tenant_id], set_=values)
    )
    try:
        conn.execute(statement)
    except IntegrityError as error:
        if broken_constraint(error) == TENANT_OF_LIMITS:
            raise NotFound("tenant", tenant) from error
        raise


def hold_policy(conn: Connection, tenant: TenantId) -> OnUpgrade | None:
    """As it stays until this transaction ends.

    Raises:
        NotFound: no such tenant.
    """
    query = select(tenants.c.on_upgrade).where(tenants.c.tenant_id == tenant).with_for_update()
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound("tenant", tenant)
    return _policy(row.on_upgrade)


def set_policy(conn: Connection, tenant: TenantId, on_upgrade: OnUpgrade | None) -> None:
    conn.execute(update(tenants).where(tenants.c.tenant_id == tenant).values(on_upgrade=on_upgrade))


def list_tenants(conn: Connection) -> list[TenantRecord]:
    names = [f.name for f in fields(Limits)]
    query = (
        select(tenants, *(tenant_limits.c[name] for name in names))
        .outerjoin(tenant_limits, tenant_limits.c.tenant_id == tenants.c.tenant_id)
        .order_by(tenants.c.tenant_id)
    )
    return [
        TenantRecord(
            tenant=TenantId(row["tenant_id"]),
            on_upgrade=_policy(row["on_upgrade"]),
            created_at=row["created_at"],
            limits=limits_of(row),
        )
        for row in conn.execute(query).mappings()
    ]


def find_tenant(conn: Connection, tenant: TenantId) -> TenantRecord:
    """Raises: NotFound."""
    found = next((one for one in list_tenants(conn) if one.tenant == tenant), None)
    if found is None:
        raise NotFound("tenant", tenant)
    return found


def limits_of(row: Mapping[Any, Any]) -> Limits:
    return Limits(**{f.name: row[f.name] for f in fields(Limits)})


def check_new_conversation(conn: Connection, tenant: TenantId, limits: Limits) -> None:
    """Raises: InvalidInput: one more would be too many."""
    if limits.conversations is None:
        return
    conn.execute(COUNT_ALONE, {"tenant": tenant})
    used: int = conn.execute(CONVERSATIONS, {"tenant": tenant}).scalar_one()
    limits.check("conversations", used + 1)


def check_new_turn(conn: Connection, tenant: TenantId, limits: Limits) -> None:
    """Raises: InvalidInput: one more at once would be too many."""
    if limits.concurrent_turns is None:
        return
    conn.execute(COUNT_ALONE, {"tenant": tenant})
    open_turns = select(func.count()).select_from(turns).where(turns.c.tenant_id == tenant, ~turns.c.closed)
    limits.check("concurrent_turns", conn.execute(open_turns).scalar_one() + 1)


def _policy(value: str | None) -> OnUpgrade | None:
    return None if value is None else OnUpgrade(value)
