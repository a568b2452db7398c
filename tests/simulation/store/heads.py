"""As service.store.heads."""

from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.head import Head, head_of
from service.domain.transcript import Transcript
from tests.simulation.store.event_store import load_conversation
from tests.simulation.tables import Session


def load_head(
    conn: Session,
    tenant: TenantId,
    conversation: ConversationId,
    *,
    for_update: bool = False,
    turn: TurnId | None = None,
) -> Head:
    head = conn.tables.heads.get((tenant, conversation)) or Head(tenant=tenant, id=conversation)
    if head.exists and turn is not None and turn not in head.turns:
        return head_of(load_conversation(conn, tenant, conversation), turn)
    return head


def load_transcript(conn: Session, tenant: TenantId, conversation: ConversationId) -> Transcript:
    return Transcript.of(load_conversation(conn, tenant, conversation))


def load_window(conn: Session, tenant: TenantId, conversation: ConversationId) -> tuple[int, ...]:
    return load_conversation(conn, tenant, conversation).window
