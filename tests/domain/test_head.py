"""What decisions are made from, and what prompts are made of, is at every version what the whole history says."""

from collections.abc import Iterable
from functools import reduce

from hypothesis import given

from service.domain.conversation import fold
from service.domain.events import ConversationCreated, ConversationEvent, TurnId, TurnStarted
from service.domain.head import Head, advance_head, head_of
from service.domain.transcript import TOLD, Transcript, transcribe
from tests.domain.histories import TURN, completed, created, message, pinned, started
from tests.domain.random_histories import CHAT, TENANT, histories


def headed(events: Iterable[ConversationEvent]) -> Head:
    return reduce(lambda head, event: advance_head(head, event), events, Head(tenant=TENANT, id=CHAT))  # noqa: PLW0108 it has a third argument


@given(histories())
def test_a_head_is_at_every_version_that_of_the_whole_history(events: list[ConversationEvent]) -> None:
    head = Head(tenant=TENANT, id=CHAT)
    for number, event in enumerate(events, 1):
        head = advance_head(head, event)
        assert head == head_of(fold(TENANT, CHAT, events[:number]))


@given(histories())
def test_a_transcript_is_at_every_version_that_of_the_whole_history(events: list[ConversationEvent]) -> None:
    for number in range(1, len(events) + 1):
        told = [event for event in events[:number] if isinstance(event, (*TOLD, TurnStarted))]
        assert transcribe(told) == Transcript.of(fold(TENANT, CHAT, events[:number]))


def test_a_head_holds_nobody_s_words() -> None:
    events: list[ConversationEvent] = [
        created(),
        message(text="hidden"),
        started(),
        pinned(),
        completed(text="hidden"),
    ]
    assert "hidden" not in repr(headed(events))


def test_a_head_does_not_grow_with_turns() -> None:
    events: list[ConversationEvent] = [created(), message(), started(), pinned(), completed()]
    assert list(headed(events).turns) == [TURN]
    assert headed(events).fresh == ()


def test_an_older_turn_can_be_asked_for() -> None:
    second = TurnId("resp_2")
    events: list[ConversationEvent] = [
        created(),
        message(),
        started(),
        pinned(),
        completed(),
        message("msg_2"),
        started(second),
    ]
    whole = fold(TENANT, CHAT, events)
    assert list(head_of(whole, TURN).turns) == [TURN, second]
    assert head_of(whole, TURN).open_turn == head_of(whole).open_turn
    assert list(head_of(whole, second).turns) == [second]


def test_a_version_can_be_given_where_events_before_it_were_left_out() -> None:
    head = advance_head(Head(tenant=TENANT, id=CHAT), ConversationCreated(alias="a"), 1)
    assert advance_head(head, message(), 7).version == 7
