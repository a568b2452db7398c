"""Forks over HTTP and through OpenAI's own client: an answer made again, a message changed, and both go on."""

from typing import Any

import pytest
from openai import NotFoundError

from service.domain.events import TurnCompleted
from tests.api.stack import TENANT, Stack
from tests.engines.simulated_text import ASSISTANT, STOP, USER, letter


def said(stack: Stack, conversation: str) -> list[tuple[str, str]]:
    """Id and text."""
    page = stack.http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc", "limit": 100})
    assert page.status_code == 200, page.text
    return [(item["id"], item["content"][0]["text"]) for item in page.json()["data"]]


def two_answers(stack: Stack) -> tuple[str, dict[str, Any], dict[str, Any]]:
    conversation = stack.conversation(metadata={"topic": "tea"})
    first = stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    return conversation, first, stack.ask("two", conversation=conversation)


def test_a_fork_shows_its_parents_items_under_their_ids_and_says_what_it_is_of(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation, first, _ = two_answers(stack)
    body = {"fork_of": {"conversation": conversation, "after_response": first["id"]}}
    fork = stack.http.post("/v1/conversations", json=body).json()
    assert fork["fork_of"] == {"conversation": conversation, "after_response": first["id"]}
    assert fork["metadata"] == {"topic": "tea"}
    assert stack.http.get(f"/v1/conversations/{conversation}").json()["fork_of"] is None
    assert said(stack, fork["id"]) == said(stack, conversation)[:2]
    item = said(stack, conversation)[0][0]
    assert stack.http.get(f"/v1/conversations/{fork['id']}/items/{item}").status_code == 200
    assert stack.http.delete(f"/v1/conversations/{fork['id']}/items/{item}").status_code == 200
    assert len(said(stack, fork["id"])) == 1
    assert len(said(stack, conversation)) == 4


def test_an_edited_message_is_answered_from_the_kv_before_it(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation, first, _ = two_answers(stack)
    fork = stack.conversation(fork_of={"conversation": conversation, "after_response": first["id"]})
    answer = stack.ask("too", conversation=fork)
    window = (*engine.prompts[0], *engine.answer(engine.prompts[0]))
    assert engine.prompts[-1] == (*window, USER, *map(letter, "too"), STOP, ASSISTANT)
    assert (answer["kv"]["source"], answer["kv"]["plan"]) == ("reused", "reuse")
    assert answer["kv"]["tokens_loaded"] > 0
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[-1])
    assert answer["previous_response_id"] == first["id"]
    completed = stack.events(fork)[-1]
    assert isinstance(completed, TurnCompleted)
    assert completed.extends == first["id"]


def test_an_earlier_response_is_continued_with_openais_own_parameter(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation, first, second = two_answers(stack)
    body = {"input": "too", "previous_response_id": first["id"]}
    counted = stack.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
    answer = stack.openai.responses.create(model="production", **body)
    fork = answer.conversation.id
    assert fork != conversation
    assert answer.previous_response_id == first["id"]
    assert answer.usage.input_tokens == counted
    assert [text for _, text in said(stack, fork)][:3] == ["one", said(stack, conversation)[1][1], "too"]
    assert stack.ask("three", previous_response_id=second["id"])["conversation"]["id"] == conversation
    assert stack.ask("on", previous_response_id=answer.id)["conversation"]["id"] == fork


def test_openais_client_forks_with_an_extra_body(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation, _, second = two_answers(stack)
    fork = stack.openai.conversations.create(
        items=[{"type": "message", "role": "user", "content": "aside"}],
        extra_body={"fork_of": {"conversation": conversation}},
    )
    items = list(stack.openai.conversations.items.list(fork.id, order="asc"))
    assert len(items) == 5
    read = stack.http.get(f"/v1/conversations/{fork.id}").json()
    assert read["fork_of"]["after_response"] == second["id"]
    with pytest.raises(NotFoundError):
        stack.openai.conversations.create(extra_body={"fork_of": {"conversation": "conv_x"}})


@pytest.mark.parametrize(
    ("fork_of", "status", "word"),
    [
        ({"conversation": "conv_nowhere"}, 404, "conv_nowhere"),
        ({"conversation": "{own}", "after_response": "resp_nowhere"}, 404, "resp_nowhere"),
        ({"conversation": "{own}"}, 400, "no answer yet"),
        ({"after_response": None}, 400, "fork_of.conversation"),
        ({"conversation": "{own}", "at": 3}, 400, "fork_of.at"),
        ("{own}", 400, "fork_of"),
    ],
)
def test_what_cannot_be_forked_is_named(shared_stack: Stack, fork_of: Any, status: int, word: str) -> None:
    own = shared_stack.conversation()
    if isinstance(fork_of, dict):
        fork_of = {name: own if value == "{own}" else value for name, value in fork_of.items()}
    answer = shared_stack.http.post("/v1/conversations", json={"fork_of": fork_of})
    assert answer.status_code == status
    assert word in answer.text


def test_another_tenants_conversation_is_unknown_to_a_fork(shared_stack: Stack) -> None:
    answer = shared_stack.ask("mine")
    other = shared_stack.client(shared_stack.other_tenant())
    fork = {"fork_of": {"conversation": answer["conversation"]["id"]}}
    assert other.post("/v1/conversations", json=fork).status_code == 404
    asked = {"input": "x", "previous_response_id": answer["id"]}
    assert other.post("/v1/responses", json=asked).status_code == 404


def test_only_an_answer_can_be_continued(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    engine.faults.max_model_len = 8
    failed = stack.post(input="far too long for it", conversation=conversation).json()["error"]["response_id"]
    fork_of = {"conversation": conversation, "after_response": failed}
    for path, body, param in (
        ("/v1/responses", {"input": "on", "previous_response_id": failed}, "previous_response_id"),
        ("/v1/conversations", {"fork_of": fork_of}, "fork_of.after_response"),
    ):
        answer = stack.http.post(path, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, "response_not_completed")


def test_erasing_the_parent_is_told_for_its_forks(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation, first, _ = two_answers(stack)
    fork = stack.ask("too", previous_response_id=first["id"])["conversation"]["id"]
    path = f"/admin/conversations/{conversation}/content"
    erased = stack.admin.delete(path, params={"tenant": TENANT}).json()
    assert (erased["forks"], erased["inherited_from"]) == ([fork], None)
    for got in (stack.http.get(f"/v1/conversations/{fork}"), stack.post(input="on", conversation=fork)):
        assert (got.status_code, got.json()["error"]["code"]) == (410, "conversation_erased")


def test_the_audit_tells_where_a_fork_came_from_and_what_it_saw(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation, first, _ = two_answers(stack)
    answer = stack.ask("too", previous_response_id=first["id"])
    fork = answer["conversation"]["id"]
    rows = stack.admin.get("/admin/audit/forks", params={"parent_id": conversation}).json()["data"]
    assert [(row["conversation_id"], row["after_turn_id"], row["parent_intact"]) for row in rows] == [
        (fork, first["id"], True)
    ]
    report = stack.admin.get(f"/admin/audit/conversations/{fork}").json()
    assert report["forks"][0]["ancestors"] == [conversation]
    theirs = stack.admin.get(f"/admin/audit/conversations/{conversation}").json()
    assert [row["conversation_id"] for row in theirs["forked_into"]] == [fork]
    with stack.owner.begin() as conn:
        prompt = conn.exec_driver_sql("SELECT audit.prompt_of(%s)", (answer["id"],)).scalar_one()
    assert tuple(prompt) == engine.prompts[-1]
