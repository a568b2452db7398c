"""As service.store.ancestry: nobody forks here."""

from collections.abc import Sequence

from service.domain.conversation import Conversation
from service.domain.events import ConversationId, Event, TenantId
from tests.simulation.store.event_store import load_conversation
from tests.simulation.tables import Session


def fold(
    conn: Session, tenant: TenantId, conversation: ConversationId, history: Sequence[Event]
) -> Conversation:
    """Of what is kept folded, which the checks compare with a fold of all its events."""
    whole = load_conversation(conn, tenant, conversation)
    assert whole.version == len(history)
    return whole
