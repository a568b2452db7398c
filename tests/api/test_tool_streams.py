"""Streams of answers that are taken apart: reasoning, words and arguments as they come, what is stored as it was streamed."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from service.domain.events import AttemptFailed
from tests.api.stack import Stack, deltas, eventually, running_stack, sse
from tests.api.test_following import chunks, take_away
from tests.api.test_resume import Events, check_every_number, resumed, said
from tests.api.test_tools import WEATHER, output_of
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import called

ARGUMENTS = '{"city": "Rome"}'
SAYS = f"<think>hm</think>Let me see.{called('get_weather', ARGUMENTS)}{called('get_time', '{}')}"
TOOLS = [WEATHER, WEATHER | {"name": "get_time"}]
BODY = {"input": "weather?", "tools": TOOLS, "stream": True}
IN_THE_CALL = SAYS.index("Rome") + 1
ARGUMENT = "response.function_call_arguments.delta"


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return answering(stack)


def answering(stack: Stack, says: str = SAYS, **options: Any) -> SimulatedEngine:
    made = stack.start_engine("a", alias=True, **options)
    made.faults.reasons, made.faults.says = True, [says]
    return made


def streamed(stack: Stack, **more: Any) -> Events:
    return said(stack.stream("weather?", tools=TOOLS, **more))


def until_arguments(events: Iterator[dict[str, Any]]) -> Events:
    """What comes up to the first of them, of the first call."""
    seen = [next(events)]
    while seen[-1]["type"] != ARGUMENT:
        seen.append(next(events))
    return said(seen)


def arguments(events: Events) -> list[str]:
    """Of each call, in pieces or at once."""
    told = {e["item_id"]: "" for e in events if e["type"] == ARGUMENT}
    for event in events:
        if event["type"] == ARGUMENT:
            told[event["item_id"]] += event["delta"]
    return list(told.values())


def kinds(events: Events) -> list[str]:
    """Deltas of one item that follow each other as one."""
    named = [event["type"].removeprefix("response.") for event in events]
    return [
        name for at, name in enumerate(named) if not (at and name.endswith("delta") and name == named[at - 1])
    ]


def check_as_stored(stack: Stack, events: Events) -> None:
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response = events[-1]["response"]
    assert done == response["output"]
    assert stack.http.get(f"/v1/responses/{response['id']}").json() == response
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in response["output"]]


def test_each_item_comes_in_openais_order_and_piece_by_piece(stack: Stack, engine: SimulatedEngine) -> None:
    events = streamed(stack)
    assert kinds(events) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        "output_item.done",
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert deltas(events) == "Let me see."
    assert arguments(events) == [ARGUMENTS, "{}"]
    assert sum(event["type"] == ARGUMENT for event in events) > len(ARGUMENTS) / 2
    check_as_stored(stack, events)


def test_words_and_arguments_are_there_while_the_engine_is_still_at_the_call(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.hold_after = IN_THE_CALL
    with stack.http.stream("POST", "/v1/responses", json=BODY) as answer:
        events = sse(answer)
        seen = until_arguments(events)
        assert not engine.faults.release.is_set()
        assert deltas(seen) == "Let me see."
        engine.faults.release.set()
        seen += said(list(events))
    assert arguments(seen) == [ARGUMENTS, "{}"]
    check_as_stored(stack, seen)


def test_it_is_resumed_at_every_number_also_after_a_restart(stack: Stack, engine: SimulatedEngine) -> None:
    live = streamed(stack)
    check_every_number(stack, live)
    with stack.second_server() as url:
        check_every_number(stack, live, url)


def test_it_is_followed_live_in_another_process(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.hold_after = IN_THE_CALL
    with (
        stack.second_server() as url,
        stack.http.stream("POST", "/v1/responses", json=BODY) as answer,
    ):
        origin = sse(answer)
        live = until_arguments(origin)
        turn = live[0]["response"]["id"]
        with stack.http.stream("GET", f"{url}/v1/responses/{turn}?stream=true") as elsewhere:
            followed = sse(elsewhere)
            seen = until_arguments(followed)
            engine.faults.release.set()
            live, seen = said(live + list(origin)), said(seen + list(followed))
        assert seen == live
        check_every_number(stack, live, url)


def test_a_second_attempt_goes_on_within_the_call(stack: Stack) -> None:
    engine = answering(stack, boot="boot_0")
    other = stack.start_engine("a", boot="boot_1")
    other.faults.reasons, other.faults.says = True, [SAYS]
    engine.faults.die_after = IN_THE_CALL
    live = streamed(stack)
    assert [event["type"] for event in live].count("everturn.attempt") == 1
    assert arguments(live) == [ARGUMENTS, "{}"]
    check_as_stored(stack, live)
    check_every_number(stack, live)


def test_a_second_attempt_with_another_call_ends_the_stream_and_its_answer_is_kept(stack: Stack) -> None:
    engine = answering(stack, boot="boot_0")
    other = stack.start_engine("a", boot="boot_1")
    other.faults.reasons, other.faults.says = True, [SAYS.replace("Rome", "Oslo")]
    engine.faults.die_after = IN_THE_CALL + 1
    live = streamed(stack)
    assert live[-1]["response"]["error"]["code"] == "attempt_lost"
    turn = live[0]["response"]["id"]
    eventually(lambda: stack.http.get(f"/v1/responses/{turn}").json()["status"] == "completed")
    whole = resumed(stack, turn)
    assert arguments(whole) == [ARGUMENTS.replace("Rome", "Oslo"), "{}"]
    for number in range(len(live) - 1):
        assert resumed(stack, turn, number)[:-1] == live[number + 1 : -1]


def test_a_call_that_is_cut_short_is_an_incomplete_one_and_can_be_gone_on_from(
    stack: Stack, engine: SimulatedEngine
) -> None:
    live = streamed(stack, max_output_tokens=IN_THE_CALL + 1)
    assert live[-1]["type"] == "response.incomplete"
    call = live[-1]["response"]["output"][-1]
    assert (call["type"], call["status"], call["arguments"]) == (
        "function_call",
        "incomplete",
        '{"city": "Ro',
    )
    check_as_stored(stack, live)
    check_every_number(stack, live)
    response = live[-1]["response"]
    engine.faults.says = ["Never mind."]
    after = stack.post(
        input=[output_of(response, "it was cut")], previous_response_id=response["id"], tools=TOOLS
    )
    assert after.status_code == 200, after.text
    window = engine.prompts[1][: len(engine.prompts[0]) + IN_THE_CALL + 1]
    assert window == (*engine.prompts[0], *(10 + ord(letter) for letter in SAYS[: IN_THE_CALL + 1]))


def test_an_answer_is_the_same_whether_it_was_streamed_or_not(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [SAYS, SAYS]
    first = streamed(stack)[-1]["response"]["output"]
    second = stack.post(input="weather?", tools=TOOLS).json()["output"]
    unnamed = [[{k: v for k, v in i.items() if "id" not in k} for i in items] for items in (first, second)]
    assert unnamed[0] == unnamed[1]


def test_an_engine_that_tells_nothing_is_heard_at_the_end(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.tells_nothing = True
    live = streamed(stack)
    assert arguments(live) == [ARGUMENTS, "{}"]
    assert sum(event["type"] == ARGUMENT for event in live) == 2
    check_as_stored(stack, live)
    check_every_number(stack, live)


def test_one_that_is_cancelled_in_a_call_ends_there_and_its_words_are_evidence(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.hold_after = IN_THE_CALL
    conversation = stack.conversation()
    with stack.http.stream("POST", "/v1/responses", json=BODY | {"conversation": conversation}) as answer:
        events = sse(answer)
        live = until_arguments(events)
        stack.http.post(f"/v1/responses/{live[0]['response']['id']}/cancel")
        engine.faults.release.set()
        live += said(list(events))
    assert live[-1]["response"]["status"] == "cancelled"
    check_every_number(stack, live)
    failed = next(e for e in stack.events(conversation) if isinstance(e, AttemptFailed))
    assert failed.partial_text.startswith("hmLet me see.{")


def test_another_process_goes_on_within_the_call(database: str) -> None:
    with running_stack(database, turn_lease_s=0.6) as stack:
        engine = answering(stack)
        engine.faults.says = [SAYS, SAYS]
        engine.faults.hold_after = IN_THE_CALL
        with stack.http.stream("POST", "/v1/responses", json=BODY) as answer:
            origin = sse(answer)
            live = until_arguments(origin)
            eventually(lambda: chunks(stack) > 0)
            take_away(stack)
            live = said(live + list(origin))
        assert live[-1]["type"] == "response.completed"
        assert arguments(live) == [ARGUMENTS, "{}"]
        check_as_stored(stack, live)
        turn, conversation = live[0]["response"]["id"], live[0]["response"]["conversation"]["id"]
        cut_off = next(e for e in stack.events(conversation) if isinstance(e, AttemptFailed))
        assert cut_off.partial_text.startswith("hmLet me see.")
        assert resumed(stack, turn) == live
        for number in range(len(live)):
            after = live[number]["sequence_number"]
            assert resumed(stack, turn, after) == live[number + 1 :]
        check_reader_who_has_more(stack, live)


def check_reader_who_has_more(stack: Stack, live: Events) -> None:
    """One whose last number was never stored is told how each item ends, with all of it, and no word twice."""
    numbers = [event["sequence_number"] for event in live]
    gap = next(at for at, (one, after) in enumerate(pairwise(numbers)) if after > one + 1)
    rest = resumed(stack, live[0]["response"]["id"], numbers[gap] + 5)
    again = [event for event in live[gap + 1 :] if not event["type"].endswith((".delta", ".added"))]
    assert [event["type"] for event in rest] == [event["type"] for event in again]
    assert {event["arguments"] for event in rest if "arguments" in event} == {ARGUMENTS, "{}"}
    assert rest[-1] == live[-1]


def test_one_in_the_background_is_streamed_by_any_process(stack: Stack, engine: SimulatedEngine) -> None:
    live = streamed(stack, background=True)
    assert arguments(live) == [ARGUMENTS, "{}"]
    check_as_stored(stack, live)
    check_every_number(stack, live)
