"""What a client may change of a conversation, and what the next prompt is then made of."""

import pytest

from service.domain import decide
from service.domain.errors import ConversationLocked, HeadMoved, InvalidInput, NotFound
from service.domain.events import (
    ConversationDeleted,
    ConversationUpdated,
    ItemDeleted,
    ItemId,
    ResponseDeleted,
    TurnId,
    TurnStreamed,
)
from tests.domain.histories import (
    TURN,
    attempt_failed,
    completed,
    created,
    failed,
    folded,
    message,
    pinned,
    started,
)

RUNNING = (created(), message(), started(), pinned())
ANSWERED = (*RUNNING, completed())


def test_metadata_is_replaced_not_merged() -> None:
    state = folded(
        [created(), ConversationUpdated(metadata={"a": "b"}), ConversationUpdated(metadata={"c": "d"})]
    )
    assert state.metadata == {"c": "d"}


def test_an_item_of_the_window_takes_the_window_with_it() -> None:
    state = folded([*ANSWERED, ItemDeleted(item=ItemId("msg_1"))])
    assert [item.text for item in state.items] == ["Hi"]
    assert (state.window, state.covered_items) == ((), 0)
    assert decide.uncovered_items(state) == state.items


def test_an_item_after_the_window_leaves_it() -> None:
    state = folded([*ANSWERED, message("msg_2", "aside"), ItemDeleted(item=ItemId("msg_2"))])
    assert state.window == (1, 2, 3, 4, 5)
    assert state.covered_items == 2
    assert [item.text for item in state.items] == ["Hello", "Hi"]


def test_a_deleted_item_is_still_known_to_the_response_that_it_was_said_to() -> None:
    state = folded([*ANSWERED, ItemDeleted(item=ItemId("msg_1"))])
    assert [item.id for item in state.withdrawn] == ["msg_1"]


def test_what_is_not_there_can_not_be_deleted() -> None:
    state = folded(ANSWERED)
    with pytest.raises(NotFound):
        decide.delete_item(state, [one.id for one in state.items], ItemId("msg_9"))
    with pytest.raises(NotFound):
        decide.delete_response(state, TurnId("resp_9"))
    with pytest.raises(NotFound):
        decide.delete_response(folded([*ANSWERED, ResponseDeleted(turn=TURN)]), TURN)


def test_a_running_turn_keeps_its_conversation_as_it_is() -> None:
    state = folded(RUNNING)
    with pytest.raises(ConversationLocked):
        decide.delete_item(state, [one.id for one in state.items], ItemId("msg_1"))
    with pytest.raises(ConversationLocked):
        decide.delete_conversation(state)
    with pytest.raises(ConversationLocked):
        decide.add_items(state, (message("msg_2"),))
    with pytest.raises(InvalidInput, match="cancel it first"):
        decide.delete_response(state, TURN)


def test_a_failed_response_can_be_deleted() -> None:
    state = folded([*RUNNING, attempt_failed(), failed()])
    assert decide.delete_response(state, TURN) == (ResponseDeleted(turn=TURN),)


def test_a_deleted_conversation_is_not_there() -> None:
    state = folded([*ANSWERED, ConversationDeleted()])
    with pytest.raises(NotFound):
        decide.check_there(state)


def test_only_the_head_that_the_client_has_seen_is_its_own() -> None:
    state = folded(ANSWERED)
    decide.check_head(state, None)
    decide.check_head(state, len(ANSWERED))
    with pytest.raises(HeadMoved, match="version 5, not 4"):
        decide.check_head(state, len(ANSWERED) - 1)


def test_how_a_turn_was_streamed_stays_with_it_and_moves_nothing() -> None:
    streamed = TurnStreamed(
        turn=TURN, item=ItemId("msg_resp_1"), pieces=(1, 1), announced=(), lost=False, text=""
    )
    before, after = folded(RUNNING), folded([*RUNNING, streamed])
    assert after.turns[TURN].streamed == streamed
    assert after.turns[TURN].state is before.turns[TURN].state
    assert decide.continue_turn(before, streamed) == (streamed,)
