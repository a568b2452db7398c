"""What a turn costs the database, and that what its client is told at once is what is read back later."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from service.domain.events import TurnCompleted
from tests.api.stack import Stack, eventually
from tests.api.test_logprobs import ASKED
from tests.api.test_resume import said
from tests.api.test_tools import CALL, WEATHER

BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "instructions": {"instructions": "be brief"},
    "metadata": {"metadata": {"who": "me"}},
    "cut short": {"max_output_tokens": 2},
    "log-probabilities": ASKED,
    "kept terms": {"temperature": 0.5, "truncation": "auto", "metadata": {"everturn.deadline_s": "60"}},
}


HELD = """
    CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(4711); {after} RETURN NULL; END';
    GRANT EXECUTE ON FUNCTION held() TO PUBLIC;
    CREATE CONSTRAINT TRIGGER held AFTER INSERT ON turns DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held();
"""
"""COMMIT of an acceptance, until whoever holds the lock lets it go on."""


@contextmanager
def commit_held(stack: Stack, *, after: str = "") -> Iterator[None]:
    with stack.owner.begin() as conn:
        conn.exec_driver_sql(HELD.format(after=after))
    with stack.owner.begin() as conn:
        conn.exec_driver_sql("SELECT pg_advisory_xact_lock(4711)")
        yield


def written_in(stack: Stack, conversation: str) -> list[str]:
    """Of each event, the transaction that wrote it."""
    query = text("SELECT txid::text FROM events WHERE stream = :stream ORDER BY stream_version")
    with stack.owner.begin() as conn:
        return list(conn.execute(query, {"stream": conversation}).scalars())


def read_back(stack: Stack, told: dict[str, Any]) -> dict[str, Any]:
    return dict(stack.http.get(f"/v1/responses/{told['id']}").json())


def test_a_turn_that_finds_its_engine_is_accepted_and_planned_in_one_transaction(shared_stack: Stack) -> None:
    conversation = shared_stack.ask("hello")["conversation"]["id"]
    assert [event.name for event in shared_stack.events(conversation)] == [
        "conversation.created",
        "message.accepted",
        "turn.started",
        "turn.pinned",
        "turn.completed",
    ]
    *beginning, end = written_in(shared_stack, conversation)
    assert len(set(beginning)) == 1
    assert end != beginning[0]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_an_answer_is_what_is_read_back_of_it(shared_stack: Stack, body: dict[str, Any]) -> None:
    conversation = shared_stack.conversation()
    for _ in range(2):
        told = shared_stack.ask("hello", conversation=conversation, **body)
        assert told == read_back(shared_stack, told)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_stream_ends_with_what_is_read_back_of_it(shared_stack: Stack, body: dict[str, Any]) -> None:
    conversation = shared_stack.conversation()
    for _ in range(2):
        told = said(shared_stack.stream("hello", conversation=conversation, **body))[-1]["response"]
        assert told == read_back(shared_stack, told)


def test_so_is_one_on_a_fork(shared_stack: Stack) -> None:
    first = shared_stack.ask("hello")
    shared_stack.ask("and then", previous_response_id=first["id"])
    told = shared_stack.ask("or else", previous_response_id=first["id"])
    assert told["previous_response_id"] == first["id"]
    assert told["conversation"] != first["conversation"]
    assert told == read_back(shared_stack, told)


def test_so_is_one_with_function_calls(stack: Stack) -> None:
    stack.start_engine("a", alias=True).faults.says = [f"Let me see.{CALL}"]
    told = stack.ask("weather?", tools=[WEATHER])
    assert [item["type"] for item in told["output"]] == ["message", "function_call"]
    assert told == read_back(stack, told)


def test_so_is_one_whose_first_attempts_were_lost(stack: Stack) -> None:
    one = stack.start_engine("a", alias=True)
    two = stack.start_engine("a")
    one.faults.abort = two.faults.abort = 1
    told = stack.ask("hello")
    assert told["attempt"] == 3
    assert told == read_back(stack, told)


def test_a_stream_begins_with_the_revision_that_answers_though_nothing_is_read(shared_stack: Stack) -> None:
    body = {"input": "hello", "stream": True}
    with shared_stack.http.stream("POST", "/v1/responses", json=body) as answer:
        conversation = answer.headers["x-everturn-conversation"]
        revision = answer.headers["x-everturn-revision"]
        assert answer.headers["x-everturn-plan"] == "cold"
        answer.read()
    completed = shared_stack.events(conversation)[-1]
    assert isinstance(completed, TurnCompleted)
    assert completed.engine_revision == revision


def test_an_answer_is_accepted_though_its_conversation_was_changed_meanwhile(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "hello", conversation=conversation)
        eventually(lambda: engine.prompts)
        changed = stack.http.post(f"/v1/conversations/{conversation}", json={"metadata": {"seen": "yes"}})
        assert changed.status_code == 200, changed.text
        engine.faults.release.set()
        told = asked.result()
    assert told["status"] == "completed"
    assert told == read_back(stack, told)
    assert [event.name for event in stack.events(conversation)][-2:] == [
        "conversation.updated",
        "turn.completed",
    ]


def test_a_prompt_is_rendered_while_its_turn_is_committed_and_answered_only_then(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    steps = list[str]()
    engine.at = steps.append
    with ThreadPoolExecutor(1) as pool:
        with commit_held(stack):
            asked = pool.submit(stack.ask, "hello")
            eventually(lambda: "render" in steps)
            assert "generate" not in steps
        told = asked.result()
    assert told["status"] == "completed"
    assert steps.count("render") == steps.count("generate") == 1


def test_an_engine_is_asked_for_nothing_more_of_a_turn_that_was_not_committed(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    steps = list[str]()
    engine.at = steps.append
    with ThreadPoolExecutor(1) as pool:
        with commit_held(stack, after="RAISE EXCEPTION ''no'';"):
            asked = pool.submit(stack.post, input="hello")
            eventually(lambda: "render" in steps)
        assert asked.result().status_code >= 500
    assert steps == ["render"]
    assert engine.prompts == []


def test_a_prompt_that_its_engine_would_not_render_loses_its_attempt_alone(stack: Stack) -> None:
    first, second = stack.start_engine("a", alias=True), stack.start_engine("a")
    tried = list[str]()

    def fail(step: str) -> None:
        if step == "render" and not tried:
            tried.append(step)
            raise RuntimeError(step)

    first.at = second.at = fail
    told = stack.ask("hello")
    assert (told["status"], told["attempt"]) == ("completed", 2)
