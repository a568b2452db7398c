"""As service.store.families: nobody forks here."""

from collections.abc import Sequence

from service.domain.events import ConversationId, TenantId
from tests.simulation.tables import Session


def relatives(
    conn: Session, tenant: TenantId, conversation: ConversationId, ancestors: Sequence[ConversationId]
) -> list[ConversationId]:
    assert not ancestors
    return []
