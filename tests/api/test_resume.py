"""A stream that broke off is taken up again at any of its events, however the turn ended and wherever it ran."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from service import turn_flow
from service.api.app import now
from service.domain.events import ConversationId, TurnStreamed
from tests.api.stack import TENANT, Stack, deltas, eventually, names, sse, until_text

Events = list[dict[str, Any]]


def resumed(stack: Stack, turn: str, after: int | None = None, url: str = "") -> Events:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    with stack.http.stream("GET", f"{url}/v1/responses/{turn}", params=query) as answer:
        assert answer.status_code == 200, answer.read()
        return said(list(sse(answer)))


def said(events: Events) -> Events:
    return [e for e in events if e["type"] != "comment"]


def check_every_number(stack: Stack, live: Events, url: str = "") -> None:
    """Also twice in a row."""
    turn = live[0]["response"]["id"]
    assert [e["sequence_number"] for e in live] == list(range(len(live)))
    assert resumed(stack, turn, url=url) == live
    for number in range(len(live)):
        assert resumed(stack, turn, number, url) == live[number + 1 :]
    assert resumed(stack, turn, 2, url) == resumed(stack, turn, 2, url)


def test_at_every_number_of_a_completed_stream_also_after_a_restart(stack: Stack) -> None:
    stack.start_engine("a", alias=True).faults.pause_s = 0.01
    live = said(stack.stream("hello"))
    assert names(live).count("response.output_text.delta") > 2
    check_every_number(stack, live)
    with stack.second_server() as url:
        check_every_number(stack, live, url)


def test_at_every_number_of_an_incomplete_stream(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    live = said(stack.stream("hello", max_output_tokens=3))
    assert live[-1]["type"] == "response.incomplete"
    check_every_number(stack, live)


def test_at_every_number_of_a_cancelled_stream(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = sse(answer)
        live = until_text(events)
        stack.http.post(f"/v1/responses/{live[0]['response']['id']}/cancel")
        engine.faults.release.set()
        live += said(list(events))
    live = said(live)
    assert live[-1]["response"]["status"] == "cancelled"
    check_every_number(stack, live)


def test_at_every_number_of_a_failed_stream(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.forget = True
    live = said(stack.stream("hello"))
    assert live[-1]["type"] == "response.failed"
    check_every_number(stack, live)


def test_at_every_number_of_a_stream_of_two_attempts(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True, boot="boot_0")
    stack.start_engine("a", boot="boot_1")
    engine.faults.die_after = 3
    live = said(stack.stream("hello"))
    assert names(live).count("everturn.attempt") == 1
    assert deltas(live) == engine.cold_text(engine.prompts[0])
    check_every_number(stack, live)


def test_a_lost_stream_ends_as_it_ended_and_from_its_beginning_has_the_answer(stack: Stack) -> None:
    first = stack.start_engine("a", alias=True, boot="boot_0")
    first.faults.hold_after = 2
    other = stack.start_engine("b")
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = sse(answer)
        live = [next(events)]
        eventually(lambda: first.faults.hold_after is None)
        stack.move_alias(other)
        first.faults.die_after = 3
        first.faults.release.set()
        live += said(list(events))
    turn = live[0]["response"]["id"]
    assert live[-1]["response"]["error"]["code"] == "attempt_lost"
    eventually(lambda: stack.http.get(f"/v1/responses/{turn}").json()["status"] == "completed")
    for number in range(len(live)):
        after = resumed(stack, turn, number)
        assert [e["type"] for e in after] == [e["type"] for e in live[number + 1 :]]
        assert after[:-1] == live[number + 1 : -1]
    whole = resumed(stack, turn)
    assert whole[-1]["type"] == "response.completed"
    assert deltas(whole) == whole[-1]["response"]["output"][0]["content"][0]["text"]
    accepted = [event for event in whole if event["sequence_number"] > live[-1]["sequence_number"]]
    assert [e["type"] for e in whole if e not in accepted] == ["response.created", "response.in_progress"]
    for place, event in enumerate(accepted):
        assert resumed(stack, turn, event["sequence_number"]) == accepted[place + 1 :]
    assert resumed(stack, turn, accepted[0]["sequence_number"] - 1) == []


def test_a_running_stream_is_joined_at_any_number(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    body = {"input": "hello", "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        events = sse(answer)
        live = [next(events)]
        turn = live[0]["response"]["id"]
        eventually(lambda: engine.faults.hold_after is None)
        query = {"stream": "true", "starting_after": "4"}
        with stack.http.stream("GET", f"/v1/responses/{turn}", params=query) as again:
            engine.faults.release.set()
            joined = said(list(sse(again)))
        live += said(list(events))
    assert joined == live[5:]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_running_stream_is_taken_up_twice_in_a_row_with_no_event_between_and_then_to_its_end(
    stack: Stack, elsewhere: bool
) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with ExitStack() as exits:
        url = exits.enter_context(stack.second_server()) if elsewhere else stack.url
        body = {"input": "hello", "stream": True}
        answer = exits.enter_context(stack.http.stream("POST", "/v1/responses", json=body))
        events = sse(answer)
        live = until_words(events, 2)
        path = f"{url}/v1/responses/{live[0]['response']['id']}"
        query = {"stream": "true", "starting_after": str(live[-1]["sequence_number"])}
        for _ in range(2):
            with stack.http.stream("GET", path, params=query) as again:
                assert next(sse(again))["type"] == "comment"
        with stack.http.stream("GET", path, params=query) as last:
            engine.faults.release.set()
            rest = said(list(sse(last)))
        live += said(list(events))
    assert rest == live[int(query["starting_after"]) + 1 :]
    assert rest[-1]["type"] == "response.completed"
    assert len(engine.prompts) == 1


def until_words(events: Iterator[dict[str, Any]], count: int) -> Events:
    """What a stream says until it has said so many words; the last of them is in the last event."""
    seen: Events = []
    while len(deltas(seen).split()) < count:
        seen += said([next(events)])
    return seen


def test_a_response_that_was_not_streamed_is_streamed_afterwards(shared_stack: Stack) -> None:
    response = shared_stack.ask("hello")
    events = resumed(shared_stack, response["id"])
    assert names(events).count("response.output_text.delta") == 1
    assert events[-1]["response"] == response
    check_every_number(shared_stack, events)


def test_a_turn_whose_process_died_still_ends_for_a_reader_at_any_number(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        turn = next(sse(answer))["response"]["id"]
        eventually(lambda: engine.faults.hold_after is None)
        with stack.database.begin() as conn:
            turn_flow.fail_turn(
                conn,
                tenant=TENANT,
                conversation=ConversationId(conversation),
                turn=turn,
                code="orphaned",
                message="its process died",
                now=now(),
            )
        with stack.second_server() as url:
            for number in (0, 1, 5, 40):
                events = resumed(stack, turn, number, url)
                assert events[-1]["type"] == "response.failed"
                assert events[-1]["response"]["error"]["code"] == "orphaned"
                assert events[0]["sequence_number"] == number + 1
                assert resumed(stack, turn, number, url) == events
        engine.faults.release.set()


def test_only_a_stream_is_recorded_as_one(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    assert not any(isinstance(e, TurnStreamed) for e in stack.events(conversation))
    stack.stream("two", conversation=conversation)
    [streamed] = [e for e in stack.events(conversation) if isinstance(e, TurnStreamed)]
    assert streamed.text == ""
    assert sum(streamed.pieces) == len(stack.state(conversation).items[-1].text)


@pytest.mark.parametrize("after", ["-1", "x", "1.5", ""])
def test_a_number_that_no_event_has_is_refused(shared_stack: Stack, after: str) -> None:
    turn = shared_stack.ask("hello")["id"]
    query = {"stream": "true", "starting_after": after}
    answer = shared_stack.http.get(f"/v1/responses/{turn}", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


def test_the_official_client_resumes(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    client = stack.openai
    live = list(client.responses.create(model="production", input="hello", stream=True))
    created = live[0]
    assert created.type == "response.created"
    again = list(client.responses.retrieve(created.response.id, stream=True, starting_after=3))
    assert again == live[4:]
