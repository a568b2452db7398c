"""The cases of Open Responses' compliance suite (openresponses.org, `compliance-tests` of its repository) over HTTP, told anew.

Each of its six sends the request that the suite sends and asks of the answer what the suite asks, by the fields that its schema demands; four of ours
beside them ask the same of a streamed call, of a call's output, of a response that goes on, and of a file. Deviations: images and files are not
taken. Its seven cases over WebSockets are left out: there are none here. `make suites` runs the suite itself, from a checkout of it.
"""

from typing import Any

import pytest

from tests.api.stack import Stack
from tests.api.test_resume import said
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import called

DEMANDED = frozenset(
    {
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
    }
    | {"instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text"}
    | {"top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"}
    | {"max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"}
    | {"safety_identifier", "prompt_cache_key"}
)
"""Of every response, also of those in the events of a stream."""
NUMBERS = ("created_at", "presence_penalty", "frequency_penalty", "top_p", "temperature", "top_logprobs")
STREAM = (
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City and state"}},
        "required": ["location"],
    },
}
ASKED = {
    "input": [{"type": "message", "role": "user", "content": "What's the weather like in San Francisco?"}]
}


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def answered(stack: Stack, **body: Any) -> dict[str, Any]:
    answer = stack.post(model="production", stream=False, **body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    check(response)
    return response


def streamed(stack: Stack, **body: Any) -> list[dict[str, Any]]:
    text = body.pop("input")
    events = said(stack.stream(text, model="production", **body))
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        if "response" in event:
            check(event["response"])
    assert events[-1]["response"]["status"] == "completed"
    return events


def check(response: dict[str, Any]) -> None:
    assert set(response) >= DEMANDED
    assert response["object"] == "response"
    assert all(isinstance(response[name], int | float) for name in NUMBERS)
    for item in response["output"]:
        assert {"id", "type", "status"} <= set(item)
        for part in item.get("content", ()):
            assert {"type", "text", "annotations", "logprobs"} <= set(part)
    if response["usage"] is not None:
        assert {"input_tokens", "output_tokens", "total_tokens"} <= set(response["usage"])
        assert "cached_tokens" in response["usage"]["input_tokens_details"]
        assert "reasoning_tokens" in response["usage"]["output_tokens_details"]


def completed_with_output(response: dict[str, Any]) -> None:
    assert response["output"]
    assert response["status"] == "completed"


def message(role: str, text: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": text}


def test_basic_text_response(stack: Stack, engine: SimulatedEngine) -> None:
    completed_with_output(answered(stack, input=[message("user", "Say hello in exactly 3 words.")]))


def test_streaming_response(stack: Stack, engine: SimulatedEngine) -> None:
    events = streamed(stack, input=[message("user", "Count from 1 to 5.")])
    assert tuple(dict.fromkeys(event["type"] for event in events)) == STREAM
    assert all("logprobs" in event for event in events if event["type"] == "response.output_text.delta")


def test_system_prompt(stack: Stack, engine: SimulatedEngine) -> None:
    pirate = message("system", "You are a pirate. Always respond in pirate speak.")
    completed_with_output(answered(stack, input=[pirate, message("user", "Say hello.")]))


def test_multi_turn_conversation(stack: Stack, engine: SimulatedEngine) -> None:
    before = [message("user", "My name is Alice."), message("assistant", "Hello Alice! How can I help you?")]
    completed_with_output(answered(stack, input=[*before, message("user", "What is my name?")]))


def test_tool_calling(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [called("get_weather", '{"location": "San Francisco, CA"}')]
    response = answered(stack, tools=[WEATHER], **ASKED)
    assert "function_call" in [item["type"] for item in response["output"]]


def test_tool_calling_streamed(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [called("get_weather", '{"location": "San Francisco, CA"}')]
    events = streamed(stack, tools=[WEATHER], **ASKED)
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds
    for kind in ("response.output_item.added", "response.output_item.done"):
        assert "function_call" in [event["item"]["type"] for event in events if event["type"] == kind]


def test_function_call_round_trip(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [called("get_weather", '{"location": "San Francisco, CA"}'), "64 degrees."]
    asked = "Use the weather tool to get the temperature in San Francisco."
    choice = {"type": "function", "name": "get_weather"}
    first = answered(stack, input=asked, tools=[WEATHER], tool_choice=choice)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees and clear"}
    completed_with_output(answered(stack, input=[output], previous_response_id=first["id"]))


def test_previous_response_id(stack: Stack, engine: SimulatedEngine) -> None:
    first = answered(stack, input="Remember this code word: papaya. Reply with only OK.")
    asked = "What code word did I ask you to remember?"
    completed_with_output(answered(stack, input=asked, previous_response_id=first["id"]))


def test_file_input_is_refused_by_name(stack: Stack, engine: SimulatedEngine) -> None:
    """A deviation."""
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    refused = stack.post(input=[{"role": "user", "content": [{"type": "input_text", "text": "?"}, file]}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].content[1].type")


def test_image_input_is_refused_by_name(stack: Stack, engine: SimulatedEngine) -> None:
    """A deviation."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    refused = stack.post(input=[{"role": "user", "content": [{"type": "input_text", "text": "?"}, image]}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].content[1].type")
