"""One key, one turn: while it runs, when it is done, when it failed, and from another process."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from service.domain.events import TurnStarted
from tests.api.stack import Stack, deltas, eventually, names, running_stack, sse
from tests.api.test_resume import said, until_words

KEY = {"Idempotency-Key": "key-1"}


def turns_of(stack: Stack, conversation: str) -> int:
    return sum(isinstance(e, TurnStarted) for e in stack.events(conversation))


def test_c2_a_finished_request_is_answered_again_and_not_done_again(stack: Stack) -> None:
    """Case C2, done."""
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    first = stack.ask("hello", conversation=conversation, headers=KEY)
    assert stack.ask("hello", conversation=conversation, headers=KEY) == first
    assert turns_of(stack, conversation) == 1
    assert len(engine.prompts) == 1


def test_c2_a_running_request_is_joined(stack: Stack) -> None:
    """Case C2, running."""
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(stack.ask, "hello", conversation=conversation, headers=KEY) for _ in range(2)]
        eventually(lambda: engine.faults.hold_after is None)
        engine.faults.release.set()
        first, second = (a.result() for a in asked)
    assert first == second
    assert turns_of(stack, conversation) == 1


def test_c2_eight_at_once_without_a_conversation_make_one_turn(stack: Stack) -> None:
    """Case C2, pending."""
    engine = stack.start_engine("a", alias=True)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: stack.ask("hello", headers=KEY), range(8)))
    assert len({a["id"] for a in answers}) == 1
    assert len(engine.prompts) == 1


def test_c2_another_body_under_the_same_key_is_refused(stack: Stack) -> None:
    """Case C2, another body."""
    stack.start_engine("a", alias=True)
    stack.ask("hello", headers=KEY)
    answer = stack.post(input="something else", headers=KEY)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "idempotency_key_reused"
    assert answer.json()["error"]["param"] == "Idempotency-Key"


def test_the_same_body_in_another_order_is_the_same_request(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.post(input="hello", temperature=0.5, headers=KEY).json()
    assert stack.post(temperature=0.5, input="hello", headers=KEY).json() == first


def test_c2_equal_text_without_a_key_is_another_turn(stack: Stack) -> None:
    """Case C2, without a key."""
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    first = stack.ask("hello", conversation=conversation)
    assert stack.ask("hello", conversation=conversation)["id"] != first["id"]
    assert turns_of(stack, conversation) == 2


def test_another_tenants_same_key_is_another_request(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.ask("hello", headers=KEY)
    other = stack.client(stack.other_tenant())
    answer = other.post("/v1/responses", json={"input": "hello"}, headers=KEY)
    assert answer.json()["id"] != first["id"]


def test_c2_a_failed_turn_is_answered_with_its_failure_again(database: str) -> None:
    """Case C2, failed."""
    with running_stack(database, turn_wait_s=0) as stack:
        stack.retire(stack.start_engine("a", alias=True))
        first = stack.post(input="hello", headers=KEY)
        assert first.status_code == 503
        stack.start_engine("a")
        again = stack.post(input="hello", headers=KEY)
        assert again.status_code == 503
        assert again.json() == first.json()


def test_a_cancelled_turn_is_answered_as_cancelled_again(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "hello", conversation=conversation, headers=KEY)
        eventually(lambda: engine.faults.hold_after is None)
        [turn] = stack.state(conversation).turns
        cancelled = stack.http.post(f"/v1/responses/{turn}/cancel").json()
        engine.faults.release.set()
        first = asked.result()
    assert (first, first["status"]) == (cancelled, "cancelled")
    assert stack.ask("hello", conversation=conversation, headers=KEY) == first
    assert turns_of(stack, conversation) == 1
    assert stack.ask("hello", conversation=conversation)["status"] == "completed"


def test_a_cancelled_stream_is_streamed_again_to_the_same_end(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body, headers=KEY) as answer:
        events = sse(answer)
        live = until_words(events, 2)
        stack.http.post(f"/v1/responses/{live[0]['response']['id']}/cancel")
        live += said(list(events))
        engine.faults.release.set()
    assert live[-1]["response"]["status"] == "cancelled"
    assert said(stack.stream("hello", conversation=conversation, headers=KEY)) == live
    assert turns_of(stack, conversation) == 1


def test_a_finished_stream_is_streamed_again_with_the_same_text(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.stream("hello", headers=KEY)
    again = stack.stream("hello", headers=KEY)
    assert deltas(again) == deltas(first)
    assert names(again)[-1] == "response.completed"
    assert again[-1]["response"] == first[-1]["response"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_running_stream_that_is_asked_for_again_is_streamed_from_its_beginning(
    stack: Stack, elsewhere: bool
) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    body = {"input": "hello", "stream": True, "conversation": stack.conversation()}
    with ExitStack() as exits:
        url = exits.enter_context(stack.second_server()) if elsewhere else stack.url
        first = sse(exits.enter_context(stack.http.stream("POST", "/v1/responses", json=body, headers=KEY)))
        live = until_words(first, 2)
        again = sse(
            exits.enter_context(stack.http.stream("POST", f"{url}/v1/responses", json=body, headers=KEY))
        )
        joined = until_words(again, 2)
        assert joined == live
        engine.faults.release.set()
        joined += said(list(again))
        live += said(list(first))
    assert joined == live
    assert live[-1]["type"] == "response.completed"
    assert turns_of(stack, str(body["conversation"])) == 1
    assert len(engine.prompts) == 1


def test_a_request_that_runs_in_another_process_is_waited_for(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with stack.second_server() as url, ThreadPoolExecutor(2) as pool:
        body = {"input": "hello"}
        first = pool.submit(stack.http.post, "/v1/responses", json=body, headers=KEY)
        eventually(lambda: engine.faults.hold_after is None)
        second = pool.submit(stack.http.post, f"{url}/v1/responses", json=body, headers=KEY)
        engine.faults.release.set()
        assert second.result().json() == first.result().json()
    assert len(engine.prompts) == 1


def test_a_key_that_no_header_could_carry_whole_is_refused(stack: Stack) -> None:
    answer = stack.post(input="hello", headers={"Idempotency-Key": "with space"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"
