"""Instructions: those of the first turn open the conversation, later ones hold for their turn alone."""

from tests.api.stack import Stack
from tests.engines.simulated_text import SYSTEM, render

BRIEF, LONG = "be brief", "be long"


def test_what_a_conversation_opened_with_may_be_said_again_and_is_there_once(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.await_artifacts(first["conversation"]["id"], 1)
    second = stack.ask("two", instructions=BRIEF, previous_response_id=first["id"])
    assert second["instructions"] == BRIEF
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert engine.prompts[1].count(SYSTEM) == 1
    assert second["kv"]["source"] == "reused"


def test_others_come_before_all_items_and_for_that_turn_alone(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one")
    said = first["output"][0]["content"][0]["text"]
    second = stack.ask("two", instructions=LONG, previous_response_id=first["id"])
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "two"},
    ]
    assert engine.prompts[1] == tuple(render([{"role": "system", "content": LONG}, *messages]))
    assert second["instructions"] == LONG
    third = stack.ask("three", previous_response_id=second["id"])
    assert (third["instructions"], engine.prompts[2].count(SYSTEM)) == (None, 0)
    listed = stack.http.get(f"/v1/conversations/{first['conversation']['id']}/items").json()["data"]
    assert {item["role"] for item in listed} == {"user", "assistant"}


def test_under_the_same_ones_the_window_is_carried(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one")
    second = stack.ask("two", instructions=LONG, previous_response_id=first["id"])
    stack.await_artifacts(first["conversation"]["id"], 2)
    third = stack.ask("three", instructions=LONG, previous_response_id=second["id"])
    assert engine.prompts[2][: len(engine.prompts[1])] == engine.prompts[1]
    assert third["kv"]["source"] == "reused"


def test_they_are_counted(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    body = {"input": "two", "instructions": LONG, "previous_response_id": first["id"]}
    counted = stack.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
    stack.ask("two", instructions=LONG, previous_response_id=first["id"])
    assert counted == len(engine.prompts[1])
    assert engine.prompts[1].count(SYSTEM) == 2
