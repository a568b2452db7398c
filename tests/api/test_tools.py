"""Function calls over HTTP: asked for, made, answered by the client, and refused where they must be."""

from typing import Any

import pytest
from httpx import Response

from tests.api.stack import Stack
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import ASSISTANT, STOP, TOOL, USER, called, letters, render

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALL = called("get_weather", '{"city": "Rome"}')


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def asked(stack: Stack, input_: object = "weather?", **more: Any) -> dict[str, Any]:
    answer = post(stack, input_, **more)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def post(stack: Stack, input_: object = "weather?", **more: Any) -> Response:
    return stack.http.post("/v1/responses", json={"input": input_, "tools": [WEATHER]} | more)


def output_of(response: dict[str, Any], text: str = "sunny") -> dict[str, Any]:
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def test_a_call_is_an_item_of_the_response_and_of_the_conversation(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = [f"Let me see.{CALL}"]
    response = asked(stack, tool_choice="required", parallel_tool_calls=False)
    message, call = response["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], call["arguments"], call["status"]) == (
        "function_call",
        "get_weather",
        '{"city": "Rome"}',
        "completed",
    )
    assert (response["tools"], response["tool_choice"]) == ([WEATHER], "required")
    assert response["parallel_tool_calls"] is False
    path = f"/v1/conversations/{response['conversation']['id']}/items"
    assert stack.http.get(path, params={"order": "asc"}).json()["data"][1:] == [message, call]
    assert stack.http.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]


def test_a_choice_is_told_back_where_there_are_no_tools_too(stack: Stack, engine: SimulatedEngine) -> None:
    for choice in ("auto", "none"):
        assert stack.ask("hello", tool_choice=choice)["tool_choice"] == choice
    assert "tool_choice" not in engine.requests[-1]["sampling_params"]


def test_the_engine_is_asked_by_the_tools_and_held_to_the_choice(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = [CALL]
    asked(stack, tool_choice={"type": "function", "name": "get_weather"})
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools = [{"type": "function", "function": function}]
    assert engine.prompts[0] == tuple(render([{"role": "user", "content": "weather?"}], tools))
    sampling = engine.requests[0]["sampling_params"]
    assert "get_weather" in sampling["structured_outputs"]["json"]
    assert sampling["skip_special_tokens"] is False


def test_a_call_and_its_output_stand_in_the_prompt_of_the_turn_after_and_the_window_is_carried(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = [CALL, "It is sunny."]
    first = asked(stack)
    stack.await_artifacts(first["conversation"]["id"], 1)
    second = asked(stack, [output_of(first)], previous_response_id=first["id"])
    stack.await_artifacts(first["conversation"]["id"], 2)
    third = asked(stack, "and tomorrow?", previous_response_id=second["id"])
    assert engine.prompts[1] == (
        *engine.prompts[0],
        *letters(CALL),
        STOP,
        TOOL,
        *letters("sunny"),
        STOP,
        ASSISTANT,
    )
    assert engine.prompts[2][: len(engine.prompts[1])] == engine.prompts[1]
    assert engine.prompts[2][-len("and tomorrow?") - 3 :] == (
        USER,
        *letters("and tomorrow?"),
        STOP,
        ASSISTANT,
    )
    assert second["output"][0]["content"][0]["text"] == "It is sunny."
    assert [r["kv"]["source"] for r in (second, third)] == ["reused", "reused"]


def test_with_other_tools_the_history_is_rendered_anew(stack: Stack, engine: SimulatedEngine) -> None:
    first = asked(stack, "hello")
    asked(stack, "again", previous_response_id=first["id"], tools=[])
    assert engine.prompts[1] == tuple(
        render(
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
                {"role": "user", "content": "again"},
            ]
        )
    )


def test_reasoning_is_an_item_of_its_own(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.reasons, engine.faults.says = True, ["<think>hm</think>Hello."]
    response = asked(stack, "hi", tools=[])
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Hello."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


def test_what_the_client_echoes_of_calls_and_reasoning_is_taken_as_it_was(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.reasons, engine.faults.says = True, [f"<think>hm</think>{CALL}"]
    first = asked(stack, conversation=None)
    second = asked(
        stack, [{"role": "user", "content": "weather?"}, *first["output"], output_of(first)], stream=None
    )
    kinds = [i["type"] for i in stack.http.get(f"/v1/responses/{second['id']}/input_items").json()["data"]]
    assert kinds == ["function_call_output", "function_call", "reasoning", "message"]
    assert engine.prompts[1][len(engine.prompts[0]) - 1 :][1 : 1 + len("<think>hm</think>" + CALL)] == tuple(
        letters("<think>hm</think>" + CALL)
    )


def test_a_call_without_its_output_is_named_with_the_way_out(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL]
    first = asked(stack)
    refused = post(stack, "never mind", previous_response_id=first["id"])
    assert refused.status_code == 400
    error, call = refused.json()["error"], first["output"][0]
    assert error["message"].startswith(f"No tool output found for function call {call['call_id']}")
    assert error["param"] == "input"
    path = f"/v1/conversations/{first['conversation']['id']}/items/{call['id']}"
    assert stack.http.delete(path).status_code == 200
    assert post(stack, "never mind", previous_response_id=first["id"]).status_code == 200


def test_an_output_for_no_call_or_for_one_that_has_its_own_names_its_field(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = [CALL]
    first = asked(stack)
    stray = {"type": "function_call_output", "call_id": "call_x", "output": ""}
    for given, field in (
        ([stray], "input[0].call_id"),
        ([output_of(first), output_of(first)], "input[1].call_id"),
    ):
        refused = post(stack, given, previous_response_id=first["id"])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    conversation = stack.conversation()
    path = f"/v1/conversations/{conversation}/items"
    refused = stack.http.post(path, json={"items": [stray]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items[0].call_id")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER | {"name": "no spaces please"}]}, "tools[0].name"),
        ({"tools": [WEATHER | {"name": "f" * 129}]}, "tools[0].name"),
        ({"tools": [WEATHER | {"parameters": "text"}]}, "tools[0].parameters"),
        ({"tools": [WEATHER | {"extra": 1}]}, "tools[0].extra"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 1}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ],
)
def test_what_is_not_understood_names_its_field(
    shared_stack: Stack, given: dict[str, Any], field: str
) -> None:
    refused = shared_stack.http.post("/v1/responses", json={"input": "x", "tools": [WEATHER]} | given)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text


def test_a_functions_name_may_be_as_long_as_a_calls(stack: Stack, engine: SimulatedEngine) -> None:
    name = "f" * 128
    engine.faults.says = [f"<call>{name} {{}}</call>"]
    response = asked(stack, tools=[WEATHER | {"name": name}])
    assert [item["name"] for item in response["output"]] == [name]


def test_an_engine_that_takes_no_tools_is_a_fault_of_tools(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.no_tools = True
    refused = post(stack)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "tools",
        "unsupported_tools",
    )


def test_structured_output_reaches_the_engine_and_comes_as_text(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = ['{"a": 1}']
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    response = asked(stack, tools=[], text={"format": form})
    assert response["output"][0]["content"][0]["text"] == '{"a": 1}'
    assert response["text"] == {"format": form | {"description": None}}
    assert "json_schema" in engine.requests[0]["sampling_params"]["structured_outputs"]["json"]


def test_tools_and_their_calls_are_counted(stack: Stack, engine: SimulatedEngine) -> None:
    counted = stack.http.post("/v1/responses/input_tokens", json={"input": "weather?", "tools": [WEATHER]})
    engine.faults.says = [CALL]
    asked(stack)
    assert counted.json()["input_tokens"] == len(engine.prompts[0])


def test_a_failed_turn_leaves_the_call_open_for_its_output(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL]
    first = asked(stack)
    engine.faults.no_tools = True
    assert post(stack, [output_of(first)], previous_response_id=first["id"]).status_code == 400
    engine.faults.no_tools = False
    assert post(stack, [output_of(first)], previous_response_id=first["id"]).status_code == 200


def test_log_probabilities_are_left_out_of_an_answer_that_was_taken_apart(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.says = [f"Let me see.{CALL}"]
    response = asked(stack, include=["message.output_text.logprobs"])
    assert response["output"][0]["content"][0]["logprobs"] == []
    plain = asked(stack, tools=[], include=["message.output_text.logprobs"])
    assert plain["output"][0]["content"][0]["logprobs"]
