"""As service.store.timeline."""

from service.domain.events import ConversationErased, TenantId
from service.store.timeline import Recorded
from tests.simulation.tables import Session


def read_recorded(conn: Session, *, tenant: TenantId, stream: str, after_version: int = 0) -> list[Recorded]:
    rows = conn.tables.events.get((tenant, stream), ())
    return [Recorded(event=row.event, occurred_at=row.occurred_at) for row in rows[after_version:]]


def is_erased(conn: Session, tenant: TenantId, stream: str) -> bool:
    rows = conn.tables.events.get((tenant, stream), ())
    return any(isinstance(row.event, ConversationErased) for row in rows)
