from dataclasses import replace

import pytest

from service.domain.artifact import ArtifactId, RefusalReason
from service.domain.conversation import Conversation
from service.domain.decide import accept_turn, continue_turn, offerable, uncovered_items
from service.domain.errors import ConversationLocked, FenceLost, Internal, InvalidInput, NotFound
from service.domain.events import ConversationEvent, Role, TurnId
from service.domain.plan import StoredArtifact
from service.domain.turn import TRANSITIONS, TurnState
from tests.domain.descriptors import V12
from tests.domain.histories import (
    OLD,
    TURN,
    attempt_failed,
    completed,
    created,
    failed,
    folded,
    message,
    pinned,
    rebuilt,
    refused,
    started,
)

OPENING: tuple[ConversationEvent, ...] = (created(), message(), started())
ANSWERED = (*OPENING, pinned(), completed())
STORED = StoredArtifact(artifact=OLD, revision=V12.digest, producer=pinned().engine, tokens=8)


def test_an_unknown_conversation_takes_no_turn() -> None:
    with pytest.raises(NotFound):
        accept_turn(folded(()), [message()], started())


def test_a_turn_adds_its_messages_and_then_itself() -> None:
    assert accept_turn(folded([created()]), [message()], started()) == (message(), started())


def test_a_second_turn_waits_for_the_open_one() -> None:
    with pytest.raises(ConversationLocked, match="resp_1"):
        accept_turn(folded(OPENING), [message("msg_2")], started(TurnId("resp_2")))


def test_a_turn_without_a_user_message_is_refused() -> None:
    with pytest.raises(InvalidInput) as refusal:
        accept_turn(folded([created()]), [message(role=Role.SYSTEM)], started())
    assert refusal.value.param == "input"


def test_the_answer_becomes_an_item_and_the_window_holds_prompt_and_output() -> None:
    state = folded(ANSWERED)
    assert [(i.role, i.text, i.turn) for i in state.items] == [
        (Role.USER, "Hello", None),
        (Role.ASSISTANT, "Hi", TURN),
    ]
    assert state.window == (1, 2, 3, 4, 5)
    assert state.version == len(ANSWERED)
    assert state.open_turn is None


def test_a_turn_that_extends_keeps_the_window_and_adds_to_it() -> None:
    second = TurnId("resp_2")
    state = folded(
        [
            *ANSWERED,
            message("msg_2"),
            started(second, ("msg_2",)),
            pinned(turn=second),
            completed(second, extends=TURN, prompt_delta=(6,), output=(7, 8), prompt_tokens=6),
        ]
    )
    assert state.window == (1, 2, 3, 4, 5, 6, 7, 8)


def test_a_full_render_replaces_the_window() -> None:
    second = TurnId("resp_2")
    state = folded(
        [*ANSWERED, message("msg_2"), started(second), pinned(turn=second), completed(second, output=(9,))]
    )
    assert state.window == (1, 2, 3, 9)


def test_the_next_prompt_adds_only_what_the_window_does_not_hold() -> None:
    state = folded([*ANSWERED, message("msg_2", "And now?")])
    assert [i.id for i in uncovered_items(state)] == ["msg_2"]


def test_what_a_failed_turn_said_is_said_anew_and_not_twice() -> None:
    state = folded([*OPENING, failed(), message("msg_2")])
    assert [i.id for i in uncovered_items(state)] == ["msg_2"]
    assert state.open_turn is None


def test_a_failed_turn_takes_nothing_of_earlier_turns_along() -> None:
    second = TurnId("resp_2")
    state = folded([*ANSWERED, message("msg_2"), started(second, ("msg_2",)), failed(second)])
    assert [i.id for i in state.items] == ["msg_1", "msg_resp_1"]
    assert state.covered_items == 2


def test_a_late_attempt_is_fenced_off() -> None:
    state = folded([*OPENING, pinned(1), attempt_failed(1), pinned(2)])
    with pytest.raises(FenceLost) as lost:
        continue_turn(state, completed(attempt=1))
    assert str(lost.value) == (
        f"Turn resp_1 is at attempt 2 (attempt 2 on engine {pinned(2).engine}); attempt 1 was fenced off, and its "
        "'turn.completed' is not recorded. The attempt that has it goes on."
    )
    assert continue_turn(state, completed(attempt=2)) == (completed(attempt=2),)


def test_a_turn_is_accepted_once() -> None:
    with pytest.raises(FenceLost) as lost:
        continue_turn(folded(ANSWERED), completed())
    assert str(lost.value) == (
        f"Turn resp_1 is completed (attempt 1 on engine {pinned(1).engine}): 'turn.completed' comes too late and is not "
        "recorded. The answer that was accepted stands."
    )


def test_an_attempt_follows_the_one_before_it() -> None:
    with pytest.raises(FenceLost):
        continue_turn(folded(OPENING), pinned(attempt=2))


def test_the_turn_remembers_refusals_and_the_rebuild_of_its_attempt() -> None:
    events = [*OPENING, pinned(), refused(RefusalReason.REVISION_MISMATCH), rebuilt()]
    turn = folded(events).turns[TURN]
    assert turn.refusals == (refused(RefusalReason.REVISION_MISMATCH),)
    assert turn.rebuilt == rebuilt()
    assert folded([*events, attempt_failed()]).turns[TURN].rebuilt is None


def _offered(state: Conversation) -> tuple[StoredArtifact, ...]:
    return offerable(state, state.turns[TURN], [STORED])


def test_f5_a_refused_handle_is_never_offered_again_to_the_same_turn() -> None:
    assert _offered(folded(OPENING)) == (STORED,)
    assert _offered(folded([*OPENING, pinned(), refused(RefusalReason.REVISION_MISMATCH)])) == ()


def test_after_one_broken_block_the_turn_is_offered_nothing_more() -> None:
    other = replace(STORED, artifact=ArtifactId("kv_0000000000000099"))
    broken = refused(RefusalReason.CHECKSUM_MISMATCH)
    misfit = refused(RefusalReason.REVISION_MISMATCH)
    for refusal, left in ((broken, ()), (misfit, (other,))):
        state = folded([*OPENING, pinned(), refusal, attempt_failed()])
        assert offerable(state, state.turns[TURN], [STORED, other]) == left


@pytest.mark.parametrize(
    ("reason", "later"),
    [
        (RefusalReason.REVISION_MISMATCH, (STORED,)),
        (RefusalReason.STORE_UNREACHABLE, (STORED,)),
        (RefusalReason.CHECKSUM_MISMATCH, ()),
    ],
)
def test_a_later_turn_is_offered_it_unless_it_was_broken(
    reason: RefusalReason, later: tuple[StoredArtifact, ...]
) -> None:
    second = TurnId("resp_2")
    state = folded([*OPENING, pinned(), refused(reason), completed(), message("msg_2"), started(second)])
    assert offerable(state, state.turns[second], [STORED]) == later


@pytest.mark.parametrize("state", list(TurnState))
@pytest.mark.parametrize("event", [pinned(2), rebuilt(), attempt_failed(), completed(), failed()])
def test_nothing_but_the_table_decides_transitions(state: TurnState, event: ConversationEvent) -> None:
    reach: dict[TurnState, tuple[ConversationEvent, ...]] = {
        TurnState.STARTED: (*OPENING, pinned(), attempt_failed()),
        TurnState.PINNED: (*OPENING, pinned()),
        TurnState.COMPLETED: ANSWERED,
        TurnState.FAILED: (*OPENING, pinned(), attempt_failed(), failed()),
    }
    assert folded(reach[state]).turns[TURN].state is state
    if (state, event.name) in TRANSITIONS:
        assert folded([*reach[state], event]).turns[TURN].state is TRANSITIONS[state, event.name]
    else:
        with pytest.raises(Internal, match=event.name):
            folded([*reach[state], event])
