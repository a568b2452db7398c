"""`decide`: what a command may add to a conversation; legality only, policy lives in plan."""

from collections.abc import Collection, Sequence

from service.domain.artifact import MISFITS
from service.domain.conversation import Conversation, Item, accepted_item
from service.domain.errors import ConversationLocked, Gone, HeadMoved, InvalidInput, NotFound
from service.domain.events import (
    ConversationCreated,
    ConversationDeleted,
    ConversationEvent,
    ConversationForked,
    ItemAccepted,
    ItemDeleted,
    ItemId,
    OnUpgrade,
    ResponseDeleted,
    TurnAsked,
    TurnId,
    TurnStarted,
)
from service.domain.head import Standing
from service.domain.items import CallId, ItemKind
from service.domain.own_keys import ON_UPGRADE
from service.domain.plan import StoredArtifact
from service.domain.turn import Turn, TurnEvent, TurnState, check
from service.domain.unanswered import waits_for_answer, wants_answer

MAX_FORK_DEPTH = 32
"""Forks of forks: each is one more history to read whenever its last one is loaded."""


def accept_turn(
    state: Standing,
    items: Sequence[ItemAccepted],
    started: TurnStarted,
    asked: TurnAsked | None = None,
    before: Sequence[Item] = (),
) -> tuple[ConversationEvent, ...]:
    """Args:
    items: what the request brings.
    before: the conversation's, where those alone have nothing to answer.

    Raises:
        NotFound: no such conversation.
        ConversationLocked: another turn is open.
        InvalidInput: nothing to answer.
    """
    check_idle(state)
    brought = tuple(map(accepted_item, items))
    if not any(map(wants_answer, brought)) and not waits_for_answer((*before, *brought)):
        raise InvalidInput(
            "There is nothing to answer: 'input' has neither text from a user nor the output of a function call, "
            "and nothing of the kind waits in the conversation.",
            "input",
            "empty_input" if items else "missing_required_parameter",
        )
    return (*items, started, *([] if asked is None else [asked]))


def check_outputs(before: Sequence[Item], added: Sequence[Item], param: str) -> None:
    """Args:
    added: what the client brings; `param` names the list, which they are the last of.

    Raises:
        InvalidInput: the output of a call that nobody made, or that has its output already; names the field.
    """
    calls, answered = _calls(before)
    for number, item in enumerate(added):
        field = f"{param}[{number}].call_id"
        if item.kind is ItemKind.FUNCTION_CALL and item.call is not None:
            if item.call in calls:
                raise InvalidInput(f"There is a function call with call_id {item.call} already.", field)
            calls[item.call] = item
        elif item.kind is ItemKind.FUNCTION_CALL_OUTPUT and item.call is not None:
            if item.call not in calls:
                raise InvalidInput(
                    f"No tool call found for function call output with call_id {item.call}.", field
                )
            if item.call in answered:
                raise InvalidInput(
                    f"The function call with call_id {item.call} has its output already.", field
                )
            answered.add(item.call)


def check_settled(items: Sequence[Item]) -> None:
    """Before a turn: each call has its output, and each output its call, which may have been deleted since.

    Raises:
        InvalidInput: naming the call and the way out.
    """
    calls, answered = _calls(items)
    for call, item in calls.items():
        if call not in answered:
            raise InvalidInput(
                f"No tool output found for function call {call}: send its 'function_call_output', "
                f"or delete the item {item.id}.",
                "input",
            )
    for item in items:
        if item.kind is ItemKind.FUNCTION_CALL_OUTPUT and item.call not in calls:
            raise InvalidInput(
                f"No tool call found for function call output with call_id {item.call}: delete the item {item.id}.",
                "input",
            )


def _calls(items: Sequence[Item]) -> tuple[dict[CallId, Item], set[CallId]]:
    """The function calls, and which of them have outputs."""
    calls = {item.call: item for item in items if item.kind is ItemKind.FUNCTION_CALL and item.call}
    answered = {item.call for item in items if item.kind is ItemKind.FUNCTION_CALL_OUTPUT and item.call}
    return calls, answered


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


def check_policy(state: Standing, policy: OnUpgrade | None) -> None:
    """Args: policy: that new metadata says the conversation has; None where it says nothing of it.

    Raises: InvalidInput: it has another, which no metadata changes.
    """
    if policy is not None and policy != state.on_upgrade:
        own = "none of its own" if state.on_upgrade is None else f"'{state.on_upgrade}'"
        raise InvalidInput(
            f"'{ON_UPGRADE}' says '{policy}', and the policy of conversation {state.id} is {own}: it was given when the "
            "conversation was made. Leave the key out, or send it with each response that it is for.",
            ON_UPGRADE,
        )


def add_items(state: Standing, items: tuple[ItemAccepted, ...]) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: no such conversation; ConversationLocked."""
    check_idle(state)
    return items


def is_latest(state: Standing, turn: TurnId) -> bool:
    """Whether to go on from this turn's answer is to go on with the conversation: no other turn came after it.

    Raises:
        NotFound: no such turn, or not any more.
    """
    find_response(state, turn)
    return state.last is not None and state.last.turn == turn and state.open_turn is None


def check_forkable(state: Standing, turn: TurnId, param: str) -> None:
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
    inherited: Standing,
    created: ConversationCreated,
    forked: ConversationForked,
    deleted: Sequence[ItemId] = (),
) -> tuple[ConversationEvent, ...]:
    """Args:
    inherited: the history that the fork begins with.
    deleted: what of it was deleted since, where it was forked from, and stays deleted.

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
    return (created, forked, *(ItemDeleted(item=item) for item in deleted))


def deleted_since(origin: Conversation, inherited: Conversation) -> tuple[ItemId, ...]:
    """Of a history, in the conversation that goes on from it."""
    kept = {item.id for item in origin.items}
    return tuple(item.id for item in inherited.items if item.id not in kept)


def delete_conversation(state: Standing) -> tuple[ConversationEvent, ...]:
    """Raises: NotFound: no such conversation; ConversationLocked."""
    check_idle(state)
    return (ConversationDeleted(),)


def delete_item(state: Standing, there: Collection[ItemId], item: ItemId) -> tuple[ConversationEvent, ...]:
    """Args: there: the items of the conversation.

    Raises: NotFound: it is none of them; ConversationLocked.
    """
    check_idle(state)
    if item not in there:
        raise NotFound("item", item, "item_id")
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
