"""A turn that brings nothing to answer, on a conversation in which something waits for an answer."""

from typing import Any

import openai
import pytest

from service.domain.events import TurnStarted
from tests.api.stack import Stack, eventually, names, sse
from tests.api.test_resume import check_every_number, said
from tests.api.test_tools import CALL, WEATHER, asked, output_of
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import render

REPEATED = {"x-stainless-retry-count": "1"}


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def add(stack: Stack, conversation: str, *items: dict[str, Any]) -> None:
    added = stack.http.post(f"/v1/conversations/{conversation}/items", json={"items": items})
    assert added.status_code == 200, added.text


def turns_of(stack: Stack, conversation: str) -> list[TurnStarted]:
    return [event for event in stack.events(conversation) if isinstance(event, TurnStarted)]


def test_the_official_client_adds_items_and_has_them_answered(stack: Stack, engine: SimulatedEngine) -> None:
    client = stack.openai
    chat = client.conversations.create()
    client.conversations.items.create(chat.id, items=[{"role": "user", "content": "hello"}])
    answer = client.responses.create(model="production", conversation=chat.id)
    assert answer.output_text == engine.cold_text(engine.prompts[0])
    assert engine.prompts == [tuple(render([user("hello")]))]
    assert list(client.responses.input_items.list(answer.id)) == []
    items = client.conversations.items.list(chat.id, order="asc")
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant"]


def test_the_next_one_extends_its_window(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("one")])
    first = stack.post(conversation=conversation).json()
    window = stack.state(conversation).window
    add(stack, conversation, user("two"))
    second = stack.post(previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    assert second["conversation"]["id"] == conversation
    assert engine.prompts[1][: len(window)] == window
    assert engine.prompts[1] == (*window, *render([user("two")]))
    assert stack.ask("three", conversation=conversation)["status"] == "completed"


def test_a_request_of_system_messages_alone_is_about_what_waits(
    stack: Stack, engine: SimulatedEngine
) -> None:
    conversation = stack.conversation(items=[user("one")])
    told = {"role": "developer", "content": "be brief"}
    answer = stack.post(conversation=conversation, input=[told]).json()
    assert answer["status"] == "completed"
    assert engine.prompts[0] == tuple(render([user("one"), {"role": "system", "content": "be brief"}]))
    given = stack.http.get(f"/v1/responses/{answer['id']}/input_items").json()["data"]
    assert [item["role"] for item in given] == ["system"]


def test_an_output_that_was_added_is_answered(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.says = [CALL, "It is sunny."]
    first = asked(stack)
    conversation = first["conversation"]["id"]
    early = stack.post(conversation=conversation, tools=[WEATHER])
    assert (early.status_code, early.json()["error"]["param"]) == (400, "input")
    add(stack, conversation, output_of(first))
    second = stack.post(conversation=conversation, tools=[WEATHER]).json()
    assert second["output"][0]["content"][0]["text"] == "It is sunny."


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"input": []}, "missing_required_parameter"),
        ({"input": [{"role": "system", "content": "x"}]}, "empty_input"),
        ({"input": " "}, "empty_input"),
    ],
    ids=str,
)
def test_where_nothing_waits_input_is_what_is_missing(
    stack: Stack, engine: SimulatedEngine, body: dict[str, Any], code: str
) -> None:
    conversation = stack.conversation()
    first = stack.ask("hello", conversation=conversation)
    before = stack.events(conversation)
    for more in ({"conversation": conversation}, {"previous_response_id": first["id"]}):
        refused = stack.post(**more, **body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, "input", code)
    assert stack.events(conversation) == before
    assert len(engine.prompts) == 1


def test_so_it_is_after_an_earlier_response_which_a_fork_would_go_on_from(
    stack: Stack, engine: SimulatedEngine
) -> None:
    first = stack.ask("one")
    stack.ask("two", previous_response_id=first["id"])
    refused = stack.post(previous_response_id=first["id"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert len(engine.prompts) == 2


def test_what_a_deleted_answer_had_answered_waits_again(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation()
    answer = stack.ask("hello", conversation=conversation)
    path = f"/v1/conversations/{conversation}/items/{answer['output'][0]['id']}"
    assert stack.http.delete(path).status_code == 200
    again = stack.post(conversation=conversation).json()
    assert again["status"] == "completed"
    assert engine.prompts == [tuple(render([user("hello")]))] * 2


def test_so_it_does_in_a_fork(stack: Stack, engine: SimulatedEngine) -> None:
    first = stack.ask("one")
    conversation = first["conversation"]["id"]
    stack.ask("two", conversation=conversation)
    path = f"/v1/conversations/{conversation}/items/{first['output'][0]['id']}"
    assert stack.http.delete(path).status_code == 200
    again = stack.post(previous_response_id=first["id"]).json()
    assert again["conversation"]["id"] != conversation
    assert engine.prompts[2] == engine.prompts[0]


def test_what_a_failed_turn_did_not_answer_waits_on(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("hello")])
    engine.faults.abort = 3
    assert stack.post(conversation=conversation).status_code == 503
    assert stack.post(conversation=conversation).json()["status"] == "completed"
    assert [started.items for started in turns_of(stack, conversation)] == [(), ()]
    assert [item.text for item in stack.state(conversation).items][:1] == ["hello"]


def test_a_repeat_is_told_from_a_request_about_what_came_later(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("one")])
    first = stack.post(conversation=conversation).json()
    assert stack.post(conversation=conversation, headers=REPEATED).json() == first
    add(stack, conversation, user("two"))
    second = stack.post(conversation=conversation, headers=REPEATED).json()
    assert second["id"] != first["id"]
    assert stack.post(conversation=conversation, headers=REPEATED).json() == second
    assert len(turns_of(stack, conversation)) == len(engine.prompts) == 2


def test_one_key_is_one_turn(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("one")])
    key = {"Idempotency-Key": "key-1"}
    first = stack.post(conversation=conversation, headers=key).json()
    add(stack, conversation, user("two"))
    assert stack.post(conversation=conversation, headers=key).json() == first
    assert len(engine.prompts) == 1


def test_its_stream_is_taken_up_at_every_number(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.pause_s = 0.01
    body = {"conversation": stack.conversation(items=[user("one")]), "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        live = said(list(sse(answer)))
    assert names(live)[-1] == "response.completed"
    check_every_number(stack, live)


def test_it_is_answered_in_the_background(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("one")])
    queued = stack.post(conversation=conversation, background=True).json()
    assert queued["status"] == "queued"
    eventually(lambda: stack.http.get(f"/v1/responses/{queued['id']}").json()["status"] == "completed")
    assert engine.prompts == [tuple(render([user("one")]))]


def test_it_is_counted_as_it_is_asked(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation(items=[user("one")])
    counted = stack.http.post("/v1/responses/input_tokens", json={"conversation": conversation}).json()
    answer = stack.post(conversation=conversation).json()
    assert answer["usage"]["input_tokens"] == counted["input_tokens"] == len(engine.prompts[0])


@pytest.mark.parametrize("told", [(), ({"role": "developer", "content": "0" * 8},)], ids=len)
def test_what_waits_is_not_left_out_of_a_prompt_that_is_cut(
    stack: Stack, engine: SimulatedEngine, told: tuple[dict[str, str], ...]
) -> None:
    engine.faults.max_model_len = 120
    conversation = stack.conversation()
    for word in ("1" * 25, "2" * 25):
        stack.ask(word, conversation=conversation, max_output_tokens=8)
    add(stack, conversation, user("x" * 40), user("y" * 40), {"role": "system", "content": "z" * 10})
    more = {"input": told} if told else {}
    answer = stack.post(conversation=conversation, truncation="auto", max_output_tokens=8, **more)
    assert answer.status_code == 200, answer.text
    assert "left out" in answer.json()["kv"]["reason"]
    prompt = "".join(map(chr, (token - 10 for token in engine.prompts[-1] if token > 10)))
    assert "x" * 40 in prompt
    assert "y" * 40 in prompt


def test_the_client_is_told_what_is_missing(shared_stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        shared_stack.openai.responses.create(model="production")
    assert (refused.value.param, refused.value.code) == ("input", "missing_required_parameter")
