"""Responses after they were asked for: cancelled, deleted, their input listed, and their prompts counted."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import NotFoundError

from service.domain.events import AttemptFailed, ResponseDeleted, TurnFailed
from tests.api.stack import Stack, deltas, eventually, running_stack, sse, until_text


def running(stack: Stack, conversation: str) -> str:
    """Waits for its open turn."""
    eventually(lambda: stack.state(conversation).open_turn)
    turn = stack.state(conversation).open_turn
    assert turn is not None
    return turn.id


def test_a_running_response_is_cancelled_and_its_engine_left(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.pause_s = 0.2
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.post, input="hello", conversation=conversation)
        turn = running(stack, conversation)
        eventually(lambda: engine.prompts)
        cancelled = stack.http.post(f"/v1/responses/{turn}/cancel").json()
        answer = asked.result()
    assert (cancelled["status"], cancelled["error"], cancelled["output"]) == ("cancelled", None, [])
    assert answer.status_code == 200
    assert answer.json() == cancelled == stack.http.get(f"/v1/responses/{turn}").json()
    failed_attempt, failed = stack.events(conversation)[-2:]
    assert isinstance(failed_attempt, AttemptFailed)
    assert isinstance(failed, TurnFailed)
    assert failed.code == "cancelled"
    assert engine.left == [f"{turn}.1"]
    assert stack.state(conversation).items == ()
    engine.faults.pause_s = 0.0
    assert stack.ask("again", conversation=conversation)["status"] == "completed"


def test_a_cancelled_stream_ends_with_what_reading_it_back_gives(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = sse(answer)
        seen = until_text(events)
        turn = seen[0]["response"]["id"]
        cancelled = stack.http.post(f"/v1/responses/{turn}/cancel").json()
        engine.faults.release.set()
        rest = list(events)
    assert rest[-1]["type"] == "response.failed"
    assert rest[-1]["response"] == cancelled
    assert deltas([*seen, *rest]).count(" ") <= 2


def test_a_response_that_runs_in_another_process_is_cancelled_too(database: str) -> None:
    with running_stack(database, turn_lease_s=0.6) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.pause_s = 0.3
        conversation = stack.conversation()
        with stack.second_server() as url, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.post, input="hello", conversation=conversation)
            turn = running(stack, conversation)
            eventually(lambda: engine.prompts)
            assert stack.http.post(f"{url}/v1/responses/{turn}/cancel").json()["status"] == "cancelled"
            assert asked.result().json()["status"] == "cancelled"
        eventually(lambda: engine.left == [f"{turn}.1"])


def test_what_has_ended_is_left_as_it_is_by_a_cancel(shared_stack: Stack) -> None:
    done = shared_stack.ask("hello")
    assert shared_stack.http.post(f"/v1/responses/{done['id']}/cancel").json() == done
    assert shared_stack.http.get(f"/v1/responses/{done['id']}").json() == done


def test_a_deleted_response_is_gone_and_its_conversation_goes_on(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    first = shared_stack.ask("one", conversation=conversation, headers={"Idempotency-Key": "deleted"})
    path = f"/v1/responses/{first['id']}"
    assert shared_stack.http.delete(path).json() == {"id": first["id"], "object": "response", "deleted": True}
    assert isinstance(shared_stack.events(conversation)[-1], ResponseDeleted)
    answers = [
        shared_stack.http.get(path),
        shared_stack.http.delete(path),
        shared_stack.http.post(f"{path}/cancel"),
        shared_stack.http.get(f"{path}/input_items"),
        shared_stack.post(input="two", previous_response_id=first["id"]),
        shared_stack.post(input="one", conversation=conversation, headers={"Idempotency-Key": "deleted"}),
    ]
    assert [a.status_code for a in answers] == [404] * 6
    assert len(shared_stack.state(conversation).items) == 2
    assert shared_stack.ask("two", conversation=conversation)["status"] == "completed"


def test_a_running_response_is_not_deleted(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        turn = next(sse(answer))["response"]["id"]
        refused = stack.http.delete(f"/v1/responses/{turn}")
        engine.faults.release.set()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "response_in_progress")


def test_input_items_are_what_the_request_brought(shared_stack: Stack) -> None:
    first = shared_stack.ask("before")
    given = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    answer = shared_stack.post(input=given, previous_response_id=first["id"]).json()
    path = f"/v1/responses/{answer['id']}/input_items"
    listed = shared_stack.http.get(path).json()
    assert [i["content"][0]["text"] for i in listed["data"]] == ["three", "two", "one"]
    page = shared_stack.http.get(path, params={"limit": 2, "order": "asc"}).json()
    assert (page["has_more"], page["data"]) == (True, listed["data"][:0:-1])
    rest = shared_stack.http.get(path, params={"order": "asc", "after": page["last_id"]}).json()
    assert (rest["has_more"], rest["data"]) == (False, listed["data"][:1])


def test_instructions_are_no_input_items(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", instructions="be brief")
    listed = shared_stack.http.get(f"/v1/responses/{answer['id']}/input_items").json()
    assert [i["role"] for i in listed["data"]] == ["user"]


def test_a_failed_response_still_shows_its_input(database: str) -> None:
    with running_stack(database, turn_wait_s=0) as stack:
        stack.retire(stack.start_engine("a", alias=True))
        failed = stack.post(input="hello").json()["error"]["response_id"]
        listed = stack.http.get(f"/v1/responses/{failed}/input_items").json()
    assert [i["content"][0]["text"] for i in listed["data"]] == ["hello"]


def test_tokens_are_counted_as_the_turn_then_takes_them(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation(items=[{"role": "system", "content": "be brief"}])
    for text in ("hello", "and again"):
        body = {"input": text, "conversation": conversation, "model": "production"}
        version = stack.state(conversation).version
        counted = stack.http.post("/v1/responses/input_tokens", json=body).json()
        assert stack.state(conversation).version == version
        answer = stack.ask(text, conversation=conversation)
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": answer["usage"]["input_tokens"],
        }


def test_tokens_are_counted_without_a_conversation_and_without_input(shared_stack: Stack) -> None:
    def count(**body: Any) -> int:
        answer = shared_stack.http.post("/v1/responses/input_tokens", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    first = shared_stack.ask("hello")
    assert count(input="hello") == first["usage"]["input_tokens"]
    assert count(previous_response_id=first["id"]) > count(input="hello")
    assert count(input="hello", instructions="be brief") > count(input="hello")


def test_tokens_can_not_be_counted_without_an_engine(stack: Stack) -> None:
    stack.retire(stack.start_engine("a", alias=True))
    answer = stack.http.post("/v1/responses/input_tokens", json={"input": "hello"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starting_after", "3"),
        ("stream", "yes"),
        ("before", "x"),
        ("include[]", "everything"),
    ],
)
def test_a_reading_with_another_parameter_is_refused_by_name(
    shared_stack: Stack, name: str, value: str
) -> None:
    turn = shared_stack.ask("hello")["id"]
    answer = shared_stack.http.get(f"/v1/responses/{turn}", params={name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name.removesuffix("[]"))


def test_a_count_of_what_decides_no_prompt_is_refused_by_name(shared_stack: Stack) -> None:
    answer = shared_stack.http.post("/v1/responses/input_tokens", json={"input": "x", "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


def test_another_tenant_can_neither_cancel_nor_delete(shared_stack: Stack) -> None:
    path = f"/v1/responses/{shared_stack.ask('hello')['id']}"
    other = shared_stack.client(shared_stack.other_tenant())
    answers = [other.post(f"{path}/cancel"), other.delete(path), other.get(f"{path}/input_items")]
    assert [a.status_code for a in answers] == [404] * 3


def test_the_official_client_counts_cancels_lists_and_deletes(shared_stack: Stack) -> None:
    client = shared_stack.openai
    assert client.responses.input_tokens.count(model="production", input="hello").input_tokens > 0
    made = client.responses.create(model="production", input="hello", include=["reasoning.encrypted_content"])
    assert client.responses.cancel(made.id) == made
    assert [i.type for i in client.responses.input_items.list(made.id)] == ["message"]
    client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(made.id)
