"""Chat completions with tools and forms of text: the official client's loop, streamed and not, and what is refused."""

import json
from typing import Any, cast

import pytest
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
)
from pydantic import BaseModel

from tests.api.stack import Stack
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import ASSISTANT, STOP, TOOL, called, letters

FUNCTION = {"name": "get_weather", "parameters": {"type": "object"}, "strict": True}
TOOLS = [cast("ChatCompletionFunctionToolParam", {"type": "function", "function": FUNCTION})]
CALL = called("get_weather", '{"city": "Rome"}')
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "weather?"}]


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class Place(BaseModel):
    city: str


def said_with(call: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def given_back(call: str, content: object = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def test_a_call_is_made_and_its_output_taken(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL, "It is sunny."]
    client = stack.openai
    answer = client.chat.completions.create(
        model="production",
        messages=ASKED,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    )
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rome"}')
    told = cast("ChatCompletionMessageParam", choice.message.model_dump())
    given: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = client.chat.completions.create(model="production", messages=[*ASKED, told, given], tools=TOOLS)
    assert second.choices[0].message.content == "It is sunny."
    ending = (*letters(CALL), STOP, TOOL, *letters("sunny"), STOP, ASSISTANT)
    assert engine.prompts[1][-len(ending) :] == ending


def test_a_stream_ends_with_the_call(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [f"Let me see.{CALL}"]
    with stack.openai.chat.completions.stream(model="production", messages=ASKED, tools=TOOLS) as stream:
        for _ in stream:
            pass
        [choice] = stream.get_final_completion().choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "get_weather"


def test_words_and_arguments_come_while_the_engine_is_still_at_it(
    stack: Stack, engine: SimulatedEngine
) -> None:
    said = f"Let me see.{CALL}{called('get_weather', '{}')}"
    engine.faults.says = [said]
    engine.faults.hold_after = said.index("Rome") + 1
    stream = stack.openai.chat.completions.create(
        model="production", messages=ASKED, tools=TOOLS, stream=True
    )
    text, calls = "", dict[int, str]()
    for chunk in stream:
        [choice] = chunk.choices
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            assert call.function is not None
            begins = call.index not in calls
            assert (bool(call.id), call.function.name) == (begins, "get_weather" if begins else None)
            calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
        if calls.get(0):
            engine.faults.release.set()
    assert engine.faults.release.is_set()
    assert (text, calls) == ("Let me see.", {0: '{"city": "Rome"}', 1: "{}"})
    assert choice.finish_reason == "tool_calls"


def test_reasoning_is_no_part_of_a_streams_text(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.reasons, engine.faults.says = True, ["<think>hm</think>Hello."]
    stream = stack.openai.chat.completions.create(model="production", messages=ASKED, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello."


def test_an_answer_is_parsed_into_a_model(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = ['{"city": "Rome"}']
    answer = stack.openai.chat.completions.parse(model="production", messages=ASKED, response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Rome")
    wanted = json.loads(engine.requests[0]["sampling_params"]["structured_outputs"]["json"])
    assert wanted["json_schema"]["schema"]["required"] == ["city"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}, "colour": 1},
                }
            },
            "response_format.json_schema.colour",
        ),
        ({"tools": [{"type": "function", "function": {"strict": True}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": FUNCTION, "colour": 1}]}, "tools[0].colour"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"colour": 1}}]}, "tools[0].function.colour"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"messages": [*ASKED, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*ASKED, given_back("nobody_made")]}, "messages[1].tool_call_id"),
        (
            {"messages": [*ASKED, given_back("c", content=[{"type": "image_url"}])]},
            "messages[1].content[0].type",
        ),
        ({"messages": [*ASKED, said_with({})]}, "messages[1].tool_calls[0].id"),
        ({"messages": [*ASKED, said_with({"id": "c"})]}, "messages[1].tool_calls[0].function.name"),
        (
            {"messages": [*ASKED, said_with({"id": "c", "function": {"name": "f"}})]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [*ASKED, said_with({"id": "c", "type": "custom"})]}, "messages[1].tool_calls[0].type"),
        ({"messages": [*ASKED, said_with(CALLED | {"colour": 1})]}, "messages[1].tool_calls[0].colour"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": 1}]}, "messages[1].tool_calls"),
        ({"messages": [*ASKED, said_with(CALLED), said_with(CALLED)]}, "messages[2].tool_calls[0].id"),
        ({"messages": [*ASKED, said_with(CALLED)]}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ],
)
def test_what_is_not_understood_names_its_field(
    shared_stack: Stack, given: dict[str, Any], field: str
) -> None:
    body = {"model": "production", "messages": ASKED} | given
    refused = shared_stack.http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text
    for name in ("'call_id'", ".call_id", "input_text", "text.format"):
        assert name not in refused.json()["error"]["message"]


def test_what_the_engine_refuses_has_the_name_that_it_was_sent_by(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.max_model_len = 5
    for stream in (False, True):
        body = {"model": "production", "messages": ASKED, "stream": stream}
        refused = stack.http.post("/v1/chat/completions", json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (
            400,
            "messages",
            "context_length_exceeded",
        )
