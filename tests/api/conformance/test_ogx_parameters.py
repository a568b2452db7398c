"""What OGX's integration tests ask of parameters and tools, told anew: openai_responses and tool_responses of `responses`.

Deviations: `truncation: auto`, limits under 16 tokens, a background response as a stream and a cancellation of what has ended are taken;
`service_tier` `priority` and `flex`, padded events, images and files are refused; an answer that was cut short says `max_output_tokens`.
"""

import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.api.conformance.asking import TIME, WEATHER, answered, counted, items, streamed
from tests.api.stack import Stack, eventually

TOLD_BACK: dict[str, Any] = {
    "max_output_tokens": 100,
    "prompt_cache_key": "cache-1",
    "safety_identifier": "user-1",
    "truncation": "disabled",
    "top_p": 0.7,
    "top_logprobs": 3,
    "parallel_tool_calls": False,
    "service_tier": "default",
    "background": False,
}
told_back = pytest.mark.parametrize(("name", "value"), TOLD_BACK.items(), ids=TOLD_BACK)
BOTH = "What is the weather in Paris and the current time in London?"
ENDED = ("completed", "cancelled")


@told_back
def test_a_parameter_is_told_back(scripted: OpenAI, name: str, value: object) -> None:
    response = answered(scripted, "What is the capital of France?", **{name: value})
    assert response.output_text
    assert getattr(response, name) == value


@told_back
def test_a_parameter_is_told_back_by_a_stream_from_its_first_event_on(
    scripted: OpenAI, name: str, value: object
) -> None:
    events = streamed(scripted, "What is the capital of France?", **{name: value})
    told = [event.response for event in events if hasattr(event, "response")]
    assert {getattr(response, name) for response in told} == {value}
    assert told[-1].status == "completed"
    counted(told[-1])


@told_back
def test_a_parameter_is_told_back_by_a_turn_that_goes_on(scripted: OpenAI, name: str, value: object) -> None:
    first = answered(scripted, "What is 4 + 4?", **{name: value})
    second = answered(scripted, "What is 6 + 6?", previous_response_id=first.id, **{name: value})
    assert (getattr(first, name), getattr(second, name)) == (value, value)
    assert second.output_text


def test_a_tier_that_may_be_any_is_told_as_the_one_there_is(scripted: OpenAI) -> None:
    assert answered(scripted, "Hello", service_tier="auto").service_tier == "default"
    events = streamed(scripted, "Hello", service_tier="auto")
    assert {event.response.service_tier for event in events if hasattr(event, "response")} == {"default"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_tier", "priority"),
        ("service_tier", "flex"),
        ("stream_options", {"include_obfuscation": True}),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    scripted: OpenAI, name: str, value: object, stream: bool
) -> None:
    """A deviation."""
    with pytest.raises(openai.BadRequestError) as refused:
        answered(scripted, "Hello", stream=stream, **{name: value})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("most", [20, 16, 15, 1])
def test_an_answer_stops_at_its_limit_and_says_so(scripted: OpenAI, most: int) -> None:
    """The word for it, and that 15 is taken, are the deviations."""
    cut = [
        answered(scripted, "Write an essay.", max_output_tokens=most),
        streamed(scripted, "Write an essay.", max_output_tokens=most)[-1].response,
    ]
    for response in cut:
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == most
        assert response.output_text
        assert response.error is None


def test_an_answer_that_came_to_its_end_has_no_incomplete_details(scripted: OpenAI) -> None:
    response = answered(scripted, "What is 2 + 2?")
    assert (response.status, response.incomplete_details) == ("completed", None)


def test_automatic_truncation_is_taken(scripted: OpenAI) -> None:
    """A deviation."""
    assert answered(scripted, "Hello", truncation="auto").truncation == "auto"
    assert streamed(scripted, "Hello", truncation="auto")[-1].type == "response.completed"


@pytest.fixture
def held(scripted_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """Its next answer as a stream stops after three words, until it is let go."""
    faults = scripted_stack.engines[0].faults
    monkeypatch.setattr(faults, "release", threading.Event())
    monkeypatch.setattr(faults, "hold_after", 3)
    yield scripted_stack
    faults.release.set()


def test_a_response_in_the_background_is_queued_at_once_and_completed_later(held: Stack) -> None:
    response = answered(held.openai, "Say hello.", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    held.engines[0].faults.release.set()
    eventually(lambda: held.openai.responses.retrieve(response.id).status in ENDED)
    ended = held.openai.responses.retrieve(response.id)
    assert (ended.status, ended.background) == ("completed", True)
    assert ended.output_text


def test_a_response_in_the_foreground_is_completed_at_once(scripted: OpenAI) -> None:
    response = answered(scripted, "What is 1 + 1?", background=False)
    assert (response.status, response.background) == ("completed", False)
    assert response.output


def test_a_response_in_the_background_can_be_a_stream(scripted: OpenAI) -> None:
    """A deviation."""
    stream = scripted.responses.create(model="production", input="Hello", background=True, stream=True)
    assert [event.type for event in stream][-1] == "response.completed"


def test_a_response_that_was_cancelled_stays_so_and_has_no_output(held: Stack) -> None:
    engine = held.engines[0]
    asked, left = len(engine.requests), len(engine.left)
    response = answered(held.openai, "Write a long story.", background=True)
    eventually(lambda: len(engine.requests) > asked)
    assert held.openai.responses.cancel(response.id).status == "cancelled"
    eventually(lambda: len(engine.left) > left)
    engine.faults.release.set()
    again = held.openai.responses.cancel(response.id)
    assert (again.id, again.status, again.output) == (response.id, "cancelled", [])
    assert held.openai.responses.retrieve(response.id) == again


def test_a_cancellation_of_what_is_completed_is_answered_as_it_stands(scripted: OpenAI) -> None:
    """A deviation."""
    response = answered(scripted, "Say hello.")
    assert scripted.responses.cancel(response.id) == scripted.responses.retrieve(response.id)
    assert scripted.responses.retrieve(response.id).status == "completed"


def test_a_cancellation_of_what_is_not_there_is_not_found(scripted: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        scripted.responses.cancel("resp_nonexistent123456")


@pytest.mark.parametrize(
    ("parallel", "names"), [(True, ["get_weather", "get_time"]), (False, ["get_weather"])]
)
def test_several_calls_come_where_they_may(scripted: OpenAI, parallel: bool, names: list[str]) -> None:
    asked = {"tools": [WEATHER, TIME], "parallel_tool_calls": parallel}
    last = streamed(scripted, BOTH, **asked)[-1].response
    for response in (answered(scripted, BOTH, **asked), last):
        assert [(item.type, item.status, item.name) for item in items(response)] == [
            ("function_call", "completed", name) for name in names
        ]
        assert response.parallel_tool_calls is parallel


def test_a_limit_of_tool_calls_does_not_count_functions(scripted: OpenAI) -> None:
    response = answered(scripted, BOTH, tools=[WEATHER, TIME], max_tool_calls=1)
    assert [item.type for item in items(response)] == ["function_call"] * 2
    assert response.max_tool_calls == 1


def test_a_limit_of_no_tool_calls_is_a_bad_request_that_says_so(scripted: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Input should be greater than or equal to 1") as refused:
        answered(scripted, "Hello", max_tool_calls=0)
    assert refused.value.param == "max_tool_calls"


@pytest.mark.parametrize(
    ("output", "read"),
    [
        ("It is raining.", "It is raining."),
        ([{"type": "input_text", "text": "Sunny, 22 degrees."}], "Sunny, 22 degrees."),
        (
            [{"type": "input_text", "text": "Overcast."}, {"type": "input_text", "text": "15 degrees."}],
            "Overcast.\n15 degrees.",
        ),
    ],
    ids=["text", "part", "parts"],
)
def test_a_calls_output_is_read_as_text_or_as_its_parts(scripted: OpenAI, output: object, read: str) -> None:
    first = answered(scripted, "What is the weather in San Francisco?", tools=[WEATHER])
    [call] = items(first)
    told = {"type": "function_call_output", "call_id": call.call_id, "output": output}
    second = answered(scripted, [told], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text.endswith(f"and was told: {read}")


def test_a_calls_output_may_come_after_the_question_said_again(scripted: OpenAI) -> None:
    asked = "What is the weather in San Francisco?"
    first = answered(scripted, asked, tools=[WEATHER])
    [call] = items(first)
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "It is raining."}
    again = [{"role": "user", "content": asked}, told]
    [message] = items(answered(scripted, again, tools=[WEATHER], previous_response_id=first.id))
    assert message.type == "message"


def test_calls_and_outputs_that_the_client_kept_are_the_history_of_a_new_conversation(
    scripted: OpenAI,
) -> None:
    asked = [{"role": "user", "content": "Is the weather better in San Francisco or in Los Angeles?"}]
    calls = items(answered(scripted, asked, tools=[WEATHER]))
    assert [call.name for call in calls] == ["get_weather"] * 2
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"Fine: {call.arguments}"}
        for call in calls
    ]
    kept = [*asked, *(call.model_dump(exclude_none=True) for call in calls), *outputs]
    response = answered(scripted, kept, tools=[WEATHER])
    assert len(response.output) == 1
    assert "Los Angeles" in response.output_text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_file", "file_id": "file_1"},
    ],
    ids=lambda part: str(part["type"]),
)
def test_an_image_or_a_file_as_a_calls_output_is_refused_by_name(
    scripted: OpenAI, part: dict[str, str]
) -> None:
    """A deviation."""
    first = answered(scripted, "What is the weather in Paris?", tools=[WEATHER])
    [call] = items(first)
    told = {"type": "function_call_output", "call_id": call.call_id, "output": [part]}
    with pytest.raises(openai.BadRequestError) as refused:
        answered(scripted, [told], previous_response_id=first.id)
    assert refused.value.param == "input[0].output[0].type"
