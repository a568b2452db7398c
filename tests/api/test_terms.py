"""What becomes of a turn whose client goes away, and of one that takes too long: by the settings, or as its request says."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.domain.events import AttemptFailed, TurnFailed, TurnStarted
from tests.api.stack import Stack, deltas, eventually, running_stack, sse, until_text
from tests.api.test_resume import check_every_number, resumed
from tests.engines.simulated import SimulatedEngine

CANCEL = {"x-everturn-on-disconnect": "cancel"}
SOON = {"x-everturn-deadline-s": "0.5"}


def holding(stack: Stack, words: int = 2) -> SimulatedEngine:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = words
    return engine


def leave_stream(stack: Stack, conversation: str, headers: dict[str, str]) -> str:
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body, headers=headers) as answer:
        seen = until_text(sse(answer))
        assert deltas(seen)
    return str(seen[0]["response"]["id"])


def leave_waiting(stack: Stack, engine: SimulatedEngine, conversation: str, headers: dict[str, str]) -> None:
    body: dict[str, Any] = {"input": "hello", "conversation": conversation}
    with httpx.Client(base_url=stack.url, headers=stack.http.headers) as client:
        with suppress(httpx.ReadTimeout):
            client.post("/v1/responses", json=body, headers=headers, timeout=2)
        eventually(lambda: engine.prompts)


def failed(stack: Stack, conversation: str) -> TurnFailed:
    eventually(lambda: isinstance(stack.events(conversation)[-1], TurnFailed))
    last = stack.events(conversation)[-1]
    assert isinstance(last, TurnFailed)
    return last


def evidence(stack: Stack, conversation: str) -> str:
    return next(
        event.partial_text for event in stack.events(conversation) if isinstance(event, AttemptFailed)
    )


def test_a_turn_goes_on_when_its_client_has_gone(stack: Stack) -> None:
    engine = holding(stack)
    turn = leave_stream(stack, stack.conversation(), {})
    engine.faults.release.set()
    eventually(lambda: stack.http.get(f"/v1/responses/{turn}").json()["status"] == "completed")


def test_a_stream_whose_client_has_gone_is_cancelled_if_it_asked_for_that(stack: Stack) -> None:
    engine = holding(stack)
    conversation = stack.conversation()
    turn = leave_stream(stack, conversation, CANCEL)
    assert failed(stack, conversation).code == "client_disconnected"
    eventually(lambda: engine.left)
    answer = stack.http.get(f"/v1/responses/{turn}").json()
    assert (answer["status"], answer["error"]) == ("cancelled", None)
    assert evidence(stack, conversation)
    assert stack.ask("and now?", conversation=conversation)["status"] == "completed"


def test_so_is_an_answer_that_was_waited_for(stack: Stack) -> None:
    engine = holding(stack)
    conversation = stack.conversation()
    leave_waiting(stack, engine, conversation, CANCEL)
    assert failed(stack, conversation).code == "client_disconnected"
    eventually(lambda: engine.left)


def test_the_settings_decide_where_the_request_does_not(database: str) -> None:
    with running_stack(database, on_disconnect="cancel") as stack:
        engine = holding(stack)
        conversation = stack.conversation()
        leave_stream(stack, conversation, {})
        assert failed(stack, conversation).code == "client_disconnected"
        engine.faults.hold_after = 2
        engine.faults.release.clear()
        turn = leave_stream(stack, conversation, {"x-everturn-on-disconnect": "continue"})
        engine.faults.release.set()
        eventually(lambda: stack.http.get(f"/v1/responses/{turn}").json()["status"] == "completed")


def test_while_somebody_else_still_reads_it_goes_on(stack: Stack) -> None:
    engine = holding(stack)
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with ThreadPoolExecutor(1) as pool:
        with stack.http.stream("POST", "/v1/responses", json=body, headers=CANCEL) as answer:
            events = sse(answer)
            turn = next(events)["response"]["id"]
            other = pool.submit(resumed, stack, turn)
            runner = stack.server._app.state.service.runner
            eventually(lambda: runner._running[turn].channel.readers == 2)
        eventually(lambda: runner._running[turn].channel.readers == 1)
        engine.faults.release.set()
        assert other.result()[-1]["type"] == "response.completed"


def test_a_stream_that_was_read_to_its_end_stays_completed(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    turn = stack.stream("hello", headers=CANCEL)[0]["response"]["id"]
    assert stack.http.get(f"/v1/responses/{turn}").json()["status"] == "completed"


def test_metadata_says_as_much_as_a_header_and_the_header_wins(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    metadata = {"everturn.on_disconnect": "cancel", "everturn.deadline_s": "30"}
    stack.ask("one", conversation=conversation, metadata=metadata)
    headers = {"x-everturn-deadline-s": "40"}
    stack.ask("two", conversation=conversation, metadata=metadata, headers=headers)
    terms = [event.terms for event in stack.events(conversation) if isinstance(event, TurnStarted)]
    assert [(t.on_disconnect, t.deadline_s) for t in terms if t] == [("cancel", 30.0), ("cancel", 40.0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-everturn-on-disconnect", "ignore"),
        ("x-everturn-deadline-s", "soon"),
        ("x-everturn-deadline-s", "0"),
        ("x-everturn-deadline-s", "nan"),
        ("x-everturn-deadline-s", "-1"),
        ("everturn.deadline_s", "1e9"),
    ],
)
def test_other_terms_are_refused_by_name(shared_stack: Stack, name: str, value: str) -> None:
    body: dict[str, Any] = {"input": "hello"}
    if name.startswith("x-"):
        body["headers"] = {name: value}
    else:
        body["metadata"] = {name: value}
    answer = shared_stack.post(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_a_turn_past_its_deadline_fails_with_what_it_had_said_as_evidence(stack: Stack) -> None:
    engine = holding(stack)
    conversation = stack.conversation()
    answer = stack.post(input="hello", conversation=conversation, headers=SOON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    assert len(evidence(stack, conversation).split()) == 2
    eventually(lambda: engine.left)
    assert stack.ask("again", conversation=conversation)["status"] == "completed"


def test_its_stream_says_so_and_is_resumed_like_any_other(stack: Stack) -> None:
    holding(stack)
    live = [event for event in stack.stream("hello", headers=SOON) if event["type"] != "comment"]
    assert live[-1]["type"] == "response.failed"
    assert live[-1]["response"]["error"]["code"] == "deadline_exceeded"
    check_every_number(stack, live)


def test_a_deadline_also_ends_the_wait_for_an_engine(database: str) -> None:
    with running_stack(database, turn_deadline_s=0.5, turn_wait_s=60) as stack:
        stack.retire(stack.start_engine("a", alias=True))
        answer = stack.post(input="hello")
        assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_one_in_the_background_has_a_deadline_too(stack: Stack) -> None:
    holding(stack)
    answer = stack.post(input="hello", background=True, headers=SOON)
    turn = answer.json()["id"]
    eventually(lambda: stack.http.get(f"/v1/responses/{turn}").json()["status"] == "failed")
    error = stack.http.get(f"/v1/responses/{turn}").json()["error"]
    assert error["code"] == "deadline_exceeded"


def test_an_answer_in_time_is_not_failed_while_it_is_recorded(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(4); RETURN NEW; END $$"
    with stack.owner.begin() as conn:
        conn.execute(text(slow))
        conn.execute(
            text(
                "CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW "
                "WHEN (NEW.type = 'turn.completed') EXECUTE FUNCTION public.slow()"
            )
        )
    answer = stack.post(input="hello", headers={"x-everturn-deadline-s": "3.5"})
    assert answer.json()["status"] == "completed"
