"""Instructions hold for their turn alone: none is carried over, and under the same ones the window is."""

from typing import Any

import pytest

from tests.api.rolling import advance, start
from tests.api.stack import Stack
from tests.engines.simulated_text import SYSTEM, render

BRIEF, LONG = "be brief", "be long"
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}


def said(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


def roles(stack: Stack, conversation: str) -> list[str]:
    listed = stack.http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()
    return [item["role"] for item in listed["data"]]


def test_the_first_ones_are_not_carried_over_either(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    second = stack.ask("two", previous_response_id=first["id"])
    talk = [("user", "one"), ("assistant", said(first)), ("user", "two")]
    assert engine.prompts[1] == tuple(render([{"role": role, "content": text} for role, text in talk]))
    assert (first["instructions"], second["instructions"]) == (BRIEF, None)
    assert roles(stack, first["conversation"]["id"]) == ["user", "assistant"] * 2
    assert second["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[1])


def test_others_come_before_all_items_in_the_place_of_those_before(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    second = stack.ask("two", instructions=LONG, previous_response_id=first["id"])
    talk = [("system", LONG), ("user", "one"), ("assistant", said(first)), ("user", "two")]
    assert engine.prompts[1] == tuple(render([{"role": role, "content": text} for role, text in talk]))
    assert second["instructions"] == LONG


def test_under_the_same_ones_the_window_is_carried(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.await_artifacts(first["conversation"]["id"], 1)
    second = stack.ask("two", instructions=BRIEF, previous_response_id=first["id"])
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert engine.prompts[1].count(SYSTEM) == 1
    assert (second["instructions"], second["kv"]["source"]) == (BRIEF, "reused")


def test_under_the_same_ones_an_upgrade_rebuilds_what_the_next_turn_reads(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.await_artifacts(first["conversation"]["id"], 1)
    new = stack.start_engine("b")
    stack.move_alias(new)
    second = stack.ask("two", instructions=BRIEF, previous_response_id=first["id"])
    assert (second["kv"]["plan"], second["kv"]["source"]) == ("rebuild", "rebuilt")
    assert said(second) == new.cold_text(new.prompts[-1])


@pytest.mark.parametrize("asked", [{"instructions": LONG}, {}, {"instructions": BRIEF, "tools": [TOOL]}])
def test_under_others_nothing_is_waited_for_after_an_upgrade(stack: Stack, asked: dict[str, Any]) -> None:
    """The history as it was accepted begins otherwise than the prompt: no rebuild of it would serve."""
    stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.await_artifacts(first["conversation"]["id"], 1)
    new = stack.start_engine("b", alias=True)
    second = stack.ask("two", previous_response_id=first["id"], **asked)
    assert (second["kv"]["plan"], second["kv"]["source"]) == ("full_render", "none")
    assert "instructions or tools are others" in second["kv"]["reason"]
    assert stack.rung == []
    assert said(second) == new.cold_text(new.prompts[-1])
    decided = stack.admin.get("/admin/audit/decisions", params={"turn_id": second["id"]}).json()["data"][-1]
    assert (decided["plan"], decided["carried_tokens"], decided["rebuild_id"]) == ("full_render", False, None)


def test_under_others_a_warm_up_of_the_history_is_left_alone(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.await_artifacts(first["conversation"]["id"], 1)
    new = stack.start_engine("b")
    stack.bell.unheard = True
    start(stack, new.revision, warm=1)
    for _ in range(2):
        advance(stack)
    headers = {"x-everturn-revision": new.revision}
    second = stack.ask("two", previous_response_id=first["id"], headers=headers)
    assert (second["kv"]["plan"], second["kv"]["source"]) == ("full_render", "none")
    [row] = stack.admin.get("/admin/rebuilds").json()["data"]
    assert (row["state"], row["queue"]) == ("queued", "background")


def test_a_fork_has_none_of_its_parents(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    stack.ask("two", instructions=BRIEF, previous_response_id=first["id"])
    stack.ask("two", previous_response_id=first["id"])
    assert engine.prompts[2].count(SYSTEM) == 0


def test_what_a_conversation_begins_with_is_not_said_twice(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation(items=[{"role": "system", "content": BRIEF}])
    first = stack.ask("one", instructions=BRIEF, conversation=conversation)
    assert (first["instructions"], engine.prompts[0].count(SYSTEM)) == (BRIEF, 1)
    stack.await_artifacts(conversation, 1)
    second = stack.ask("two", instructions=BRIEF, conversation=conversation)
    assert (second["kv"]["source"], engine.prompts[1].count(SYSTEM)) == ("reused", 1)
    assert roles(stack, conversation) == ["system", *["user", "assistant"] * 2]


def test_they_are_counted(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("one", instructions=BRIEF)
    body = {"input": "two", "instructions": LONG, "previous_response_id": first["id"]}
    counted = stack.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
    stack.ask("two", instructions=LONG, previous_response_id=first["id"])
    assert counted == len(engine.prompts[1])
    assert engine.prompts[1].count(SYSTEM) == 1
