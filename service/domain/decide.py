"""`decide`: what a command may add to a conversation; legality only, policy lives in plan."""

from collections.abc import Sequence

from service.domain.conversation import Conversation, Item
from service.domain.errors import ConversationLocked, InvalidInput, NotFound
from service.domain.events import ConversationEvent, MessageAccepted, Role, TurnId, TurnStarted
from service.domain.plan import StoredArtifact
from service.domain.turn import Turn, TurnEvent, check


def accept_turn(
    state: Conversation, messages: Sequence[MessageAccepted], started: TurnStarted
) -> tuple[ConversationEvent, ...]:
    """Raises:
    NotFound: no such conversation.
    ConversationLocked: another turn is open.
    InvalidInput: nothing to answer.
    """
    if not state.exists:
        raise NotFound("conversation", state.id, "conversation")
    if state.open_turn is not None:
        raise ConversationLocked(
            f"Conversation {state.id} is answering turn {state.open_turn.id}; send the next one when it has ended."
        )
    if not any(m.role is Role.USER for m in messages):
        raise InvalidInput(
            "'input' must hold at least one user message.", "input", "missing_required_parameter"
        )
    return (*messages, started)


def continue_turn(state: Conversation, event: TurnEvent) -> tuple[ConversationEvent, ...]:
    """Raises:
    NotFound: no such turn.
    FenceLost: another attempt took over, or the turn has ended.
    """
    check(find_turn(state, event.turn), event)
    return (event,)


def find_turn(state: Conversation, turn: TurnId) -> Turn:
    if turn not in state.turns:
        raise NotFound("response", turn)
    return state.turns[turn]


def uncovered_items(state: Conversation) -> tuple[Item, ...]:
    """What the next prompt adds to the stored window."""
    return state.items[state.covered_items :]


def offerable(
    state: Conversation, turn: Turn, artifacts: Sequence[StoredArtifact]
) -> tuple[StoredArtifact, ...]:
    """Without those that were refused on this turn, or for what they are."""
    refused = {r.refusal.artifact for r in turn.refusals} | state.dead
    return tuple(a for a in artifacts if a.artifact not in refused)
