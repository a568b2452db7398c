"""Items are of one status wherever they are shown: what the limit cut is incomplete there too, whose arguments nobody may act on."""

from typing import Any

import pytest

from tests.api.stack import Stack
from tests.api.test_tools import WEATHER, output_of
from tests.engines.simulated_text import called

CALL = called("get_weather", '{"city": "Rome"}')
WHOLE = {
    "message": "It is sunny in Rome.",
    "function_call": f"<think>hm</think>Let me see.{CALL}",
    "reasoning": "<think>hm, and yet hm</think>",
}
CUT = {
    "message": len("It is su"),
    "function_call": WHOLE["function_call"].index("Rome") + 2,
    "reasoning": len("<think>hm, and"),
}
SHOWN = {
    "message": ["completed", "incomplete"],
    "function_call": ["completed", "completed", "completed", "incomplete"],
    "reasoning": ["completed", "incomplete"],
}


def answered(stack: Stack, kind: str, **more: Any) -> dict[str, Any]:
    engine = stack.start_engine("a", alias=True)
    engine.faults.reasons, engine.faults.says = True, [WHOLE[kind]]
    # An answer that is streamed is taken apart as it comes, and so a call or reasoning without its end is one.
    live = stack.stream("weather?", tools=[WEATHER], **more)
    response: dict[str, Any] = live[-1]["response"]
    assert [i["item"]["status"] for i in live if i["type"] == "response.output_item.done"] == [
        item["status"] for item in response["output"]
    ]
    return response


def listed(stack: Stack, conversation: str) -> list[dict[str, Any]]:
    path = f"/v1/conversations/{conversation}/items"
    items: list[dict[str, Any]] = stack.http.get(path, params={"order": "asc"}).json()["data"]
    assert [stack.http.get(f"{path}/{item['id']}").json() for item in items] == items
    return items


@pytest.mark.parametrize("kind", WHOLE)
def test_what_the_limit_cut_is_incomplete_in_the_conversation_as_in_the_response(
    stack: Stack, kind: str
) -> None:
    response = answered(stack, kind, max_output_tokens=CUT[kind])
    items = listed(stack, response["conversation"]["id"])
    assert items[1:] == response["output"]
    assert stack.http.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]
    assert items[-1]["type"] == kind
    assert [item["status"] for item in items] == SHOWN[kind]


def test_what_came_to_its_end_is_completed_in_both(stack: Stack) -> None:
    response = answered(stack, "function_call")
    items = listed(stack, response["conversation"]["id"])
    assert items[1:] == response["output"]
    assert {item["status"] for item in items} == {"completed"}


def test_where_the_context_ends_an_answer_its_item_is_incomplete_too(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    engine.faults.max_model_len = len(stack.state(conversation).window) + len("two") + 6
    stack.ask("two", conversation=conversation)
    assert [item["status"] for item in listed(stack, conversation)] == ["completed"] * 3 + ["incomplete"]


def test_it_stays_so_when_the_conversation_goes_on_and_in_a_fork(stack: Stack) -> None:
    response = answered(stack, "function_call", max_output_tokens=CUT["function_call"])
    conversation = response["conversation"]["id"]
    fork = stack.conversation(fork_of={"conversation": conversation, "after_response": response["id"]})
    on = stack.post(input=[output_of(response)], conversation=conversation, tools=[WEATHER]).json()
    statuses = [item["status"] for item in listed(stack, conversation)]
    assert statuses == [*SHOWN["function_call"], "completed", "completed"]
    assert listed(stack, fork) == listed(stack, conversation)[:4]
    # What a request brings is whole, also an output for a call that was not.
    brought = stack.http.get(f"/v1/responses/{on['id']}/input_items").json()["data"]
    assert [item["status"] for item in brought] == ["completed"]


def test_what_stood_before_a_cut_item_is_whole_also_when_that_is_deleted(stack: Stack) -> None:
    response = answered(stack, "function_call", max_output_tokens=CUT["function_call"])
    conversation = response["conversation"]["id"]
    path = f"/v1/conversations/{conversation}/items/{response['output'][-1]['id']}"
    assert stack.http.delete(path).status_code == 200
    assert {item["status"] for item in listed(stack, conversation)} == {"completed"}


def test_a_cancelled_answer_leaves_no_item_that_could_be_half_of_one(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    body = {"input": "hello", "conversation": conversation, "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        turn = answer.headers["x-everturn-response"]
        stack.http.post(f"/v1/responses/{turn}/cancel").raise_for_status()
        engine.faults.release.set()
        answer.read()
    assert listed(stack, conversation) == []


def test_a_status_that_a_client_brings_is_not_taken_for_one_of_ours(shared_stack: Stack) -> None:
    given = {"role": "assistant", "content": "so", "status": "incomplete"}
    items = listed(shared_stack, shared_stack.conversation(items=[given]))
    assert [item["status"] for item in items] == ["completed"]
