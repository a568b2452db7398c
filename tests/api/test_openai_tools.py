"""The official client with tools and structured output, as its documentation has them."""

import json
from typing import Any, cast

import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall, ResponseInputParam
from pydantic import BaseModel

from tests.api.stack import Stack
from tests.api.test_tools import CALL, WEATHER
from tests.engines.simulated import SimulatedEngine

TOOLS = [cast("FunctionToolParam", WEATHER)]


class Place(BaseModel):
    city: str
    warm: bool


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def calls_of(response: Any) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def test_a_tool_loop_that_sends_its_whole_input_again(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL, "It is sunny in Rome."]
    client = stack.openai
    sent: ResponseInputParam = [{"role": "user", "content": "weather?"}]
    response = client.responses.create(model="production", input=sent, tools=TOOLS)
    sent += cast("ResponseInputParam", [item.model_dump() for item in response.output])
    for call in calls_of(response):
        assert json.loads(call.arguments) == {"city": "Rome"}
        sent.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    response = client.responses.create(model="production", input=sent, tools=TOOLS)
    assert response.output_text == "It is sunny in Rome."


def test_a_tool_loop_on_a_conversation(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL, "It is sunny in Rome."]
    client = stack.openai
    conversation = client.conversations.create()
    more: dict[str, Any] = {"model": "production", "conversation": conversation.id, "tools": TOOLS}
    with client.responses.stream(input="weather?", **more) as stream:
        kinds = [event.type for event in stream]
        [call] = calls_of(stream.get_final_response())
    assert "response.function_call_arguments.done" in kinds
    output: ResponseInputParam = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ]
    assert client.responses.create(input=output, **more).output_text == "It is sunny in Rome."
    listed = client.conversations.items.list(conversation.id, order="asc")
    assert [item.type for item in listed] == [
        *("message", "function_call", "function_call_output", "message")
    ]


def test_an_answer_parsed_into_a_model(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = ['{"city": "Rome", "warm": true}']
    response = stack.openai.responses.parse(model="production", input="where?", text_format=Place)
    assert response.output_parsed == Place(city="Rome", warm=True)
    asked = json.loads(engine.requests[0]["sampling_params"]["structured_outputs"]["json"])
    assert asked["json_schema"]["schema"]["required"] == ["city", "warm"]
