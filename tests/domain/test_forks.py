"""A fork begins with its parent's history as far as a turn, goes its own way, and inherits what its parent has given up."""

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain import decide
from service.domain.conversation import Ancestor, Conversation, branch, evolve
from service.domain.errors import Gone, InvalidInput, NotFound
from service.domain.events import (
    ConversationCreated,
    ConversationErased,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    ItemDeleted,
    ItemId,
    ResponseDeleted,
    TurnId,
)
from tests.domain.histories import TURN, completed, created, failed, folded, message, pinned, started

PARENT, CHILD = ConversationId("conv_1"), ConversationId("conv_2")
NEXT = TurnId("resp_2")
ANSWERED = (created(), message(), started(), pinned(), completed())
FORKED = ConversationForked(parent=PARENT, parent_version=5, turn=TURN, parent_chain="ab" * 32)
MADE = ConversationCreated(alias="canary", metadata={"branch": "b"})


def next_turn(turn: TurnId = NEXT, item: str = "msg_2", **answer: Any) -> tuple[ConversationEvent, ...]:
    given = {"extends": TURN, "prompt_delta": (6, 7), "output": (8,)} | answer
    return (
        message(item, "and?"),
        started(turn, (item,)),
        pinned(turn=turn),
        completed(turn, item=ItemId(f"msg_{turn}"), **given),
    )


def forked(*own: ConversationEvent, parent: Conversation | None = None) -> Conversation:
    state = branch(folded(ANSWERED) if parent is None else parent, CHILD)
    for event in (MADE, FORKED, *own):
        state = evolve(state, event)
    return state


def test_a_fork_has_its_parents_items_turns_and_window_and_a_version_of_its_own() -> None:
    parent, fork = folded(ANSWERED), forked()
    assert (fork.items, fork.turns, fork.window, fork.last) == (
        parent.items,
        parent.turns,
        parent.window,
        parent.last,
    )
    assert (fork.id, fork.version, fork.alias, fork.metadata) == (CHILD, 2, "canary", {"branch": "b"})
    assert fork.fork == FORKED
    assert fork.ancestors == (Ancestor(conversation=PARENT, tokens=5),)


def test_its_first_answer_extends_its_parents_window() -> None:
    fork = forked(*next_turn())
    assert fork.window == (1, 2, 3, 4, 5, 6, 7, 8)
    assert [item.text for item in fork.items] == ["Hello", "Hi", "and?", "Hi"]
    assert folded(ANSWERED).window == (1, 2, 3, 4, 5)


def test_a_fork_of_a_fork_knows_how_much_it_shares_with_each() -> None:
    once = forked(*next_turn())
    twice = branch(once, ConversationId("conv_3"))
    assert twice.ancestors == (
        Ancestor(conversation=CHILD, tokens=8),
        Ancestor(conversation=PARENT, tokens=5),
    )


def test_deleting_an_inherited_item_gives_up_the_window_and_its_ancestors_kv() -> None:
    fork = forked(ItemDeleted(item=ItemId("msg_1")))
    assert ([item.text for item in fork.items], fork.window) == (["Hi"], ())
    assert fork.ancestors == (Ancestor(conversation=PARENT, tokens=0),)


def test_deleting_a_later_item_keeps_both() -> None:
    fork = forked(message("msg_9"), ItemDeleted(item=ItemId("msg_9")))
    assert (fork.window, fork.ancestors[0].tokens) == ((1, 2, 3, 4, 5), 5)


def test_what_the_parent_has_deleted_since_is_deleted_in_the_fork() -> None:
    whole, origin = folded(ANSWERED), folded([*ANSWERED, ItemDeleted(item=ItemId("msg_1"))])
    events = decide.fork(whole, MADE, FORKED, decide.deleted_since(origin, whole))
    assert events == (MADE, FORKED, ItemDeleted(item=ItemId("msg_1")))
    assert decide.fork(whole, MADE, FORKED, decide.deleted_since(whole, whole)) == (MADE, FORKED)


def test_only_an_answer_can_be_forked_after() -> None:
    decide.check_forkable(folded(ANSWERED), TURN, "x")
    failing = folded([created(), message(), started(), failed()])
    with pytest.raises(InvalidInput, match="failed") as refused:
        decide.check_forkable(failing, TURN, "x")
    assert (refused.value.code, refused.value.param) == ("response_not_completed", "x")
    with pytest.raises(InvalidInput, match="has not ended"):
        decide.check_forkable(folded(ANSWERED[:-1]), TURN, "x")
    with pytest.raises(NotFound):
        decide.check_forkable(folded(ANSWERED), NEXT, "x")
    with pytest.raises(NotFound):
        decide.check_forkable(folded([*ANSWERED, ResponseDeleted(turn=TURN)]), TURN, "x")
    with pytest.raises(Gone):
        decide.check_forkable(folded([*ANSWERED, ConversationErased(by="x", reason="")]), TURN, "x")


def test_a_running_turn_does_not_keep_an_earlier_one_from_being_forked_after() -> None:
    running = folded([*ANSWERED, *next_turn()[:3]])
    decide.check_forkable(running, TURN, "x")
    assert not decide.is_latest(running, TURN)


def test_the_latest_answer_is_gone_on_from_without_a_fork() -> None:
    assert decide.is_latest(folded(ANSWERED), TURN)
    later = folded([*ANSWERED, *next_turn()])
    assert (decide.is_latest(later, TURN), decide.is_latest(later, NEXT)) == (False, True)
    withdrawn = folded([*ANSWERED, message("msg_2"), started(NEXT, ("msg_2",)), failed(NEXT)])
    assert decide.is_latest(withdrawn, TURN)


def test_forks_of_forks_have_an_end() -> None:
    deepest = folded(ANSWERED)
    for number in range(decide.MAX_FORK_DEPTH):
        decide.fork(deepest, MADE, FORKED)
        deepest = branch(deepest, ConversationId(f"conv_{number + 2}"))
    with pytest.raises(InvalidInput, match=f"{decide.MAX_FORK_DEPTH} times") as refused:
        decide.fork(deepest, MADE, FORKED)
    assert refused.value.code == "fork_too_deep"


def test_what_was_erased_is_not_forked() -> None:
    erased = replace(folded(ANSWERED), erased=ConversationErased(by="x", reason=""))
    with pytest.raises(Gone):
        decide.fork(erased, MADE, FORKED)
    with pytest.raises(Gone, match=CHILD):
        decide.check_there(forked(parent=erased))


def turn_events(turn: TurnId, before: TurnId | None, number: int) -> tuple[ConversationEvent, ...]:
    item = f"msg_{turn}_asked"
    answer = completed(
        turn, item=ItemId(f"msg_{turn}"), extends=before, prompt_delta=(number,), output=(number + 1,)
    )
    return (message(item, f"to {turn}"), started(turn, (item,)), pinned(turn=turn), answer)


@given(parent=st.integers(1, 5), shared=st.integers(1, 5), own=st.integers(0, 4), levels=st.integers(1, 3))
def test_a_fork_is_what_one_conversation_with_the_same_turns_would_be(
    parent: int, shared: int, own: int, levels: int
) -> None:
    """Whatever came after the fork in its parents, and however many there are."""
    shared = min(shared, parent)
    turns = [TurnId(f"resp_{number}") for number in range(parent)]
    straight: list[ConversationEvent] = [created()]
    for number in range(shared):
        straight += turn_events(turns[number], turns[number - 1] if number else None, number)
    fork, last = folded(straight), turns[shared - 1]
    for level in range(levels):
        fork = evolve(evolve(branch(fork, ConversationId(f"conv_{level + 2}")), created()), FORKED)
        for number in range(own):
            turn = TurnId(f"resp_{level}_{number}")
            events = turn_events(turn, last, number)
            fork, last = reduce(evolve, events, fork), turn
            straight += events
    whole = folded(straight)
    for name in ("items", "turns", "last", "window", "covered_items", "withdrawn", "dead"):
        assert getattr(fork, name) == getattr(whole, name), name
    assert (len(fork.ancestors), fork.version) == (levels, 2 + 4 * own)
