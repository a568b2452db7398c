"""`decide`: what a command may add to a conversation; legality only, policy lives in plan."""

from collections.abc import Sequence

from service.domain.artifact import MISFITS
from service.domain.conversation import Conversation, Item
from service.domain.errors import ConversationLocked, Gone, HeadMoved, InvalidInput, NotFound
from service.domain.events import (
    ConversationCreated,
    ConversationDeleted,
    ConversationEvent,
    ConversationForked,
    ItemDeleted,
    ItemId,
    MessageAccepted,
    ResponseDeleted,
    Role,
    TurnId,
    TurnStarted,
)
from service.domain.head import Standing
from service.domain.plan import StoredArtifact
from service.domain.turn import Turn, TurnEvent, TurnState, check

MAX_FORK_DEPTH = 32
"""Forks of forks: each is one more history to read whenever its last one is loaded."""


def accept_turn(
    state: Standing, messages: Sequence[MessageAccepted], started: TurnStarted
) -> tuple[ConversationEvent, ...]:
    """Raises:
    NotFound: no such conversation.
    ConversationLocked: another turn is open.
    InvalidInput: nothing to answer.
    """
    check_idle(state)
    if not any(m.role is Role.USER for m in messages):
        raise InvalidInput(
            "'input' must hold at least one user message.", "input", "missing_required_parameter"
        )
    return (*messages, started)


def check_idle(state: Standing) -> None:
    """What a turn is answering must stay as it was accepted.

    Raises:
        NotFound: no such conversation, or not any more.
        ConversationLocked: a turn is open.
    """
    check_there(state)
    if state.open_turn is not None:
        raise ConversationLocked(
            f"Conversation {state.id} is answering turn {state.open_turn.id}; send the next one when it has ended."
        )


def check_there(state: Standing) -> None:
    """Raises: NotFound: no such conversation, or not any more; Gone: erased."""
    if not state.exists or state.deleted:
        raise NotFound("conversation", state.id, "conversation")
    _check_kept(state)


def check_head(state: Standing, head: int | None) -> None:
    """Args: head: the version that the caller has seen; None where it does not matter to it.

    Raises: HeadMoved.
    """
    if head is not None and head != state.version:
        raise HeadMoved(
            f"Conversation {state.id} is at version {state.version}, not {head} as 'If-Match' says; read it again."
        )


def add_items(state: Standing, messages: tuple[MessageAccepted, ...]) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: no such conversation; ConversationLocked."""
    check_idle(state)
    return messages


def is_latest(state: Standing, turn: TurnId) -> bool:
    """Whether to go on from this turn's answer is to go on with the conversation: no other turn came after it.

    Raises:
        NotFound: no such turn, or not any more.
    """
    find_response(state, turn)
    return state.last is not None and state.last.turn == turn and state.open_turn is None


def check_forkable(state: Conversation, turn: TurnId, param: str) -> None:
    """Args: param: how the client named the turn.

    Raises:
        NotFound: no such turn in it, or not any more.
        Gone: erased.
        InvalidInput: the turn has no answer that could be gone on from.
    """
    _check_kept(state)
    if turn not in state.turns or turn in state.deleted_responses:
        raise NotFound("response", turn, param)
    found = state.turns[turn]
    if found.state is not TurnState.COMPLETED:
        how = "failed" if found.state is TurnState.FAILED else "has not ended"
        raise InvalidInput(
            f"Response {turn} {how}: there is no answer to go on from. Name a response that was completed.",
            param,
            "response_not_completed",
        )


def fork(
    origin: Conversation, inherited: Conversation, created: ConversationCreated, forked: ConversationForked
) -> tuple[ConversationEvent, ...]:
    """Args:
    origin: the conversation that is forked, as it is now.
    inherited: the history that the fork begins with. What `origin` has deleted of it since stays deleted.

    Raises:
        Gone: erased.
        InvalidInput: too many forks of forks.
    """
    _check_kept(inherited)
    if len(inherited.ancestors) >= MAX_FORK_DEPTH:
        raise InvalidInput(
            f"Conversation {inherited.id} is a fork of a fork, {MAX_FORK_DEPTH} times over, and that is the most. "
            "Fork one of those it came from, or begin a new conversation with its items.",
            code="fork_too_deep",
        )
    kept = {item.id for item in origin.items}
    deleted = (ItemDeleted(item=item.id) for item in inherited.items if item.id not in kept)
    return (created, forked, *deleted)


def delete_conversation(state: Standing) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: no such conversation; ConversationLocked."""
    check_idle(state)
    return (ConversationDeleted(),)


def delete_item(state: Conversation, item: ItemId) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: it is no item of the conversation; ConversationLocked."""
    check_idle(state)
    find_item(state, item)
    return (ItemDeleted(item=item),)


def delete_response(state: Standing, turn: TurnId) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: no such turn, or not any more; InvalidInput: it has not ended."""
    if find_response(state, turn).state not in (TurnState.COMPLETED, TurnState.FAILED):
        raise InvalidInput(
            f"Response {turn} is still running: cancel it first, or wait for its end.",
            "response_id",
            "response_in_progress",
        )
    return (ResponseDeleted(turn=turn),)


def continue_turn(state: Standing, event: TurnEvent) -> tuple[ConversationEvent, ...]:
    """Raises:
    NotFound: no such turn.
    FenceLost: another attempt took over, or the turn has ended.
    """
    check(find_turn(state, event.turn), event)
    return (event,)


def find_turn(state: Standing, turn: TurnId) -> Turn:
    if turn not in state.turns:
        raise NotFound("response", turn)
    return state.turns[turn]


def find_response(state: Standing, turn: TurnId) -> Turn:
    """As its client may still read it. Raises: NotFound; Gone: erased."""
    if turn in state.deleted_responses:
        raise NotFound("response", turn)
    _check_kept(state)
    return find_turn(state, turn)


def find_item(state: Conversation, item: ItemId) -> Item:
    found = next((one for one in state.items if one.id == item), None)
    if found is None:
        raise NotFound("item", item, "item_id")
    return found


def uncovered_items(state: Conversation) -> tuple[Item, ...]:
    """What the next prompt adds to the stored window."""
    return state.items[state.covered_items :]


def offerable(state: Standing, turn: Turn, artifacts: Sequence[StoredArtifact]) -> tuple[StoredArtifact, ...]:
    """Without those that were refused on this turn, or for what they are.

    None at all once something stored proved broken on this turn: a conversation's artifacts share their leading blocks,
    and each load that fails costs an attempt.
    """
    if any(r.refusal.reason not in MISFITS for r in turn.refusals):
        return ()
    refused = {r.refusal.artifact for r in turn.refusals} | state.dead
    return tuple(a for a in artifacts if a.artifact not in refused)


def _check_kept(state: Standing) -> None:
    if state.erased is not None:
        raise Gone(f"The content of conversation {state.id} was erased for good. Begin a new conversation.")
