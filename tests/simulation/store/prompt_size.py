"""As service.store.prompt_size."""

from service.domain.events import ConversationId, MessageAccepted, TenantId, TurnCompleted
from tests.simulation.tables import Session


def new_bytes(conn: Session, tenant: TenantId, conversation: ConversationId) -> int:
    size = 0
    for row in conn.tables.events[tenant, conversation]:
        if isinstance(row.event, TurnCompleted):
            size = 0
        elif isinstance(row.event, MessageAccepted):
            size += len(row.event.text.encode())
    return size
