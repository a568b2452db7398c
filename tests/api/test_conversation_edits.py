"""Conversations changed, deleted, and edited item by item; and what the next prompt then sees."""

from typing import Any

import pytest
from openai import NotFoundError

from service.domain.events import ConversationDeleted, ItemDeleted
from tests.api.stack import Stack, eventually
from tests.engines.simulated_text import render


def said(*lines: tuple[str, str]) -> tuple[int, ...]:
    return tuple(render([{"role": role, "content": text} for role, text in lines]))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_metadata_is_replaced_and_the_next_head_is_another(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation(metadata={"a": "b", "c": "d"})
    before = shared_stack.http.get(f"/v1/conversations/{conversation}")
    changed = shared_stack.http.post(f"/v1/conversations/{conversation}", json={"metadata": {"e": "f"}})
    assert changed.json() == before.json() | {"metadata": {"e": "f"}}
    assert changed.headers["etag"] != before.headers["etag"]
    read = shared_stack.http.get(f"/v1/conversations/{conversation}")
    assert read.json() == changed.json()
    assert read.headers["etag"] == changed.headers["etag"]


def test_metadata_of_null_leaves_none(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation(metadata={"a": "b"})
    assert shared_stack.openai.conversations.update(conversation, metadata=None).metadata == {}


def test_a_conversation_is_made_of_no_body(shared_stack: Stack) -> None:
    """As `curl -X POST` sends none."""
    made = shared_stack.http.post("/v1/conversations")
    assert (made.status_code, made.json()["metadata"]) == (200, {})


def test_a_policy_that_metadata_was_made_with_may_stand_in_it_again(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation(metadata={"everturn.on_upgrade": "stay", "a": "b"})
    path = f"/v1/conversations/{conversation}"
    metadata = {"everturn.on_upgrade": "stay", "a": "c"}
    changed = shared_stack.http.post(path, json={"metadata": metadata})
    assert (changed.status_code, changed.json()["metadata"]) == (200, metadata)
    without = shared_stack.http.post(path, json={"metadata": {}}).json()
    assert (without["metadata"], without["on_upgrade"]) == ({}, "stay")


@pytest.mark.parametrize(("made", "own"), [({}, "none of its own"), ({"on_upgrade": "replay"}, "'replay'")])
def test_an_update_of_metadata_does_not_pretend_to_change_the_policy(
    shared_stack: Stack, made: dict[str, Any], own: str
) -> None:
    conversation = shared_stack.conversation(**made)
    path = f"/v1/conversations/{conversation}"
    refused = shared_stack.http.post(path, json={"metadata": {"everturn.on_upgrade": "stay"}})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "everturn.on_upgrade")
    assert own in error["message"]
    assert shared_stack.state(conversation).version == 1


@pytest.mark.parametrize("body", [{}, {"metadata": [None]}, {"metadata": {"k": 1}}, {"name": "x"}])
def test_an_update_of_anything_else_is_refused_by_name(shared_stack: Stack, body: dict[str, Any]) -> None:
    conversation = shared_stack.conversation()
    answer = shared_stack.http.post(f"/v1/conversations/{conversation}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition(".")[0] in {"metadata", "name"}


def test_a_deleted_conversation_is_gone_but_its_responses_are_not(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    response = shared_stack.ask("hello", conversation=conversation)
    path = f"/v1/conversations/{conversation}"
    deleted = shared_stack.http.delete(path)
    assert deleted.json() == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    assert isinstance(shared_stack.events(conversation)[-1], ConversationDeleted)
    for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/items")):
        assert shared_stack.http.request(method, where).status_code == 404
    assert shared_stack.post(input="on", conversation=conversation).status_code == 404
    assert shared_stack.post(input="on", previous_response_id=response["id"]).status_code == 404
    assert shared_stack.http.get(f"/v1/responses/{response['id']}").json() == response


def test_items_that_were_added_are_in_the_next_prompt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    items = [user("one"), {"role": "assistant", "content": "two"}]
    added = stack.http.post(f"/v1/conversations/{conversation}/items", json={"items": items}).json()
    assert [i["role"] for i in added["data"]] == ["user", "assistant"]
    assert (added["object"], added["has_more"]) == ("list", False)
    assert (added["first_id"], added["last_id"]) == (added["data"][0]["id"], added["data"][1]["id"])
    path = f"/v1/conversations/{conversation}/items/{added['first_id']}"
    assert stack.http.get(path).json() == added["data"][0]
    stack.ask("three", conversation=conversation)
    assert engine.prompts == [said(("user", "one"), ("assistant", "two"), ("user", "three"))]


def test_items_added_after_an_answer_extend_its_window(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.http.post(f"/v1/conversations/{conversation}/items", json={"items": [user("aside")]})
    stack.ask("two", conversation=conversation)
    first, second = engine.prompts
    assert second[: len(first)] == first
    assert second[-len(said(("user", "aside"), ("user", "two"))) :] == said(
        ("user", "aside"), ("user", "two")
    )


def test_an_item_that_was_deleted_is_in_no_later_prompt_and_the_next_is_rendered_whole(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation(items=[user("secret")])
    first = stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    secret = stack.state(conversation).items[0].id
    path = f"/v1/conversations/{conversation}"
    answer = stack.http.delete(f"{path}/items/{secret}")
    assert answer.json() == stack.http.get(path).json()
    assert isinstance(stack.events(conversation)[-1], ItemDeleted)
    assert stack.http.get(f"{path}/items/{secret}").status_code == 404
    assert stack.http.delete(f"{path}/items/{secret}").status_code == 404
    text = first["output"][0]["content"][0]["text"]
    second = stack.ask("two", conversation=conversation)
    assert engine.prompts[-1] == said(("user", "one"), ("assistant", text), ("user", "two"))
    completed = stack.state(conversation).turns[second["id"]].completed
    assert completed is not None
    assert completed.extends is None
    assert completed.loaded is None


def test_kv_of_a_window_that_is_no_more_is_offered_to_nobody(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation(items=[user("secret words of some length")])
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    secret = stack.state(conversation).items[0].id
    stack.http.delete(f"/v1/conversations/{conversation}/items/{secret}")
    second = stack.ask("two", conversation=conversation)
    assert second["kv"]["refusal"] is None
    eventually(lambda: stack.await_artifacts(conversation, 1))
    third = stack.ask("three", conversation=conversation)
    assert third["kv"]["source"] == "reused"
    assert engine.prompts[-1][: len(engine.prompts[-2])] == engine.prompts[-2]


def test_an_item_deleted_before_any_answer_leaves_the_rest(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    path = f"/v1/conversations/{conversation}/items"
    added = stack.http.post(path, json={"items": [user("aside"), user("kept")]}).json()
    stack.http.delete(f"{path}/{added['first_id']}")
    stack.ask("two", conversation=conversation)
    first, second = engine.prompts
    assert second[: len(first)] == first
    assert second[-len(said(("user", "kept"), ("user", "two"))) :] == said(("user", "kept"), ("user", "two"))


def test_what_a_turn_is_answering_can_not_be_changed_meanwhile(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    conversation = stack.conversation(items=[user("one")])
    path = f"/v1/conversations/{conversation}"
    item = stack.state(conversation).items[0].id
    body = {"input": "two", "conversation": conversation, "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        eventually(lambda: engine.faults.hold_after is None)
        refused = [
            stack.http.post(f"{path}/items", json={"items": [user("x")]}),
            stack.http.delete(f"{path}/items/{item}"),
            stack.http.delete(path),
        ]
        assert stack.http.post(path, json={"metadata": {"a": "b"}}).status_code == 200
        engine.faults.release.set()
        answer.read()
    assert [(r.status_code, r.json()["error"]["code"]) for r in refused] == [(400, "conversation_locked")] * 3
    assert len(stack.state(conversation).items) == 3


def test_another_tenant_can_change_nothing(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation(items=[user("one")])
    item = shared_stack.state(conversation).items[0].id
    path = f"/v1/conversations/{conversation}"
    other = shared_stack.client(shared_stack.other_tenant())
    answers = [
        other.post(path, json={"metadata": {}}),
        other.delete(path),
        other.get(f"{path}/items/{item}"),
        other.post(f"{path}/items", json={"items": [user("x")]}),
        other.delete(f"{path}/items/{item}"),
    ]
    assert [a.status_code for a in answers] == [404] * 5


@pytest.mark.parametrize("head", ['"0"', '"999"'])
def test_an_edit_on_another_head_is_refused(shared_stack: Stack, head: str) -> None:
    conversation = shared_stack.conversation(items=[user("one")])
    item = shared_stack.state(conversation).items[0].id
    path, headers = f"/v1/conversations/{conversation}", {"if-match": head}
    answers = [
        shared_stack.http.post(path, json={"metadata": {}}, headers=headers),
        shared_stack.http.delete(path, headers=headers),
        shared_stack.http.post(f"{path}/items", json={"items": [user("x")]}, headers=headers),
        shared_stack.http.delete(f"{path}/items/{item}", headers=headers),
        shared_stack.post(input="on", conversation=conversation, headers=headers),
    ]
    assert [(a.status_code, a.json()["error"]["code"]) for a in answers] == [(412, "precondition_failed")] * 5
    assert shared_stack.state(conversation).version == 2


def test_an_edit_on_the_head_that_was_read_is_taken(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    path = f"/v1/conversations/{conversation}"
    headers = {"if-match": shared_stack.http.get(path).headers["etag"]}
    assert shared_stack.post(input="on", conversation=conversation, headers=headers).status_code == 200
    assert shared_stack.post(input="on", conversation=conversation, headers=headers).status_code == 412


def test_a_response_is_deleted_on_the_head_that_was_read_and_on_no_other(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    response, http = shared_stack.ask("on", conversation=conversation)["id"], shared_stack.http
    path, seen = f"/v1/responses/{response}", http.get(f"/v1/conversations/{conversation}").headers["etag"]
    http.post(f"/v1/conversations/{conversation}", json={"metadata": {}})
    refused = http.delete(path, headers={"if-match": seen})
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition_failed")
    assert http.get(path).status_code == 200
    now = http.get(f"/v1/conversations/{conversation}").headers["etag"]
    assert http.delete(path, headers={"if-match": now}).json()["deleted"] is True
    # Sent again, as where its answer was lost.
    assert http.delete(path, headers={"if-match": now}).status_code == 404


@pytest.mark.parametrize("head", ["*", '"1"'])
def test_a_cancellation_takes_no_head_and_says_so(shared_stack: Stack, head: str) -> None:
    response = shared_stack.ask("hello")["id"]
    refused = shared_stack.http.post(f"/v1/responses/{response}/cancel", headers={"if-match": head})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "If-Match")


@pytest.mark.parametrize("head", ["abc", '"abc"', 'W/"1"', ""])
def test_a_head_that_is_no_version_is_refused_by_name(shared_stack: Stack, head: str) -> None:
    path, headers = f"/v1/conversations/{shared_stack.conversation()}", {"if-match": head}
    for answer in (
        shared_stack.http.post(path, json={"metadata": {}}, headers=headers),
        shared_stack.http.delete("/v1/responses/resp_none", headers=headers),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "If-Match")


def test_queries_are_checked_by_name(shared_stack: Stack) -> None:
    path = f"/v1/conversations/{shared_stack.conversation()}/items"
    assert (
        shared_stack.http.get(path, params={"include[]": "message.output_text.logprobs"}).status_code == 200
    )
    for name, value in (("before", "x"), ("include", "everything"), ("limit", "101"), ("order", "up")):
        answer = shared_stack.http.get(path, params={name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_the_official_client_edits_and_deletes(shared_stack: Stack) -> None:
    client = shared_stack.openai
    made = client.conversations.create()
    added = client.conversations.items.create(
        made.id,
        items=[{"type": "message", "role": "user", "content": "hello"}],
        include=["message.output_text.logprobs"],
    )
    item = added.data[0]
    assert item.id is not None
    assert client.conversations.items.retrieve(item.id, conversation_id=made.id) == item
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.items.delete(item.id, conversation_id=made.id).id == made.id
    assert list(client.conversations.items.list(made.id)) == []
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(made.id)
