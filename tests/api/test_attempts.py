"""Attempts that fail: another one answers, nothing of the lost one is kept, and no text is sent twice."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from service.api.app import now
from service.domain.artifact import RefusalReason
from service.domain.events import AttemptFailed, ConversationId, KvRefused, TurnCompleted, TurnFailed, TurnId
from tests.api.stack import TENANT, Stack, deltas, eventually, names, running_stack
from tests.engines.simulated_text import render
from tests.flows.orphans import fail_as_orphan


def text_of(answer: dict[str, object]) -> str:
    output = answer["output"]
    assert isinstance(output, list)
    return str(output[0]["content"][0]["text"])


def test_an_offer_that_is_refused_costs_no_attempt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    engine.faults.refuse = RefusalReason.LEASE_EXPIRED
    answer = stack.ask("two", conversation=conversation)
    assert answer["attempt"] == 1
    assert answer["kv"]["source"] == "none"
    assert answer["kv"]["refusal"] == {"reason": "lease_expired", "differing_fields": []}
    assert text_of(answer) == engine.cold_text(engine.prompts[-1])


@pytest.mark.parametrize("in_stream", [False, True])
def test_kv_that_breaks_while_it_loads_is_left_out_of_the_next_attempt(stack: Stack, in_stream: bool) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.corrupt_in_stream = in_stream
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    artifact = stack.await_artifacts(conversation, 1)[0]
    engine.faults.corrupt = True
    answer = stack.ask("two", conversation=conversation)
    offers = [r["kv_transfer_params"]["everturn"]["offer"] for r in engine.requests]
    assert offers == [None, artifact, None]
    assert answer["attempt"] == 2
    assert answer["kv"]["refusal"]["reason"] == "checksum_mismatch"
    assert text_of(answer) == engine.cold_text(engine.prompts[-1])


def test_f5_kv_refused_for_what_it_is_is_never_offered_again(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    bad = stack.await_artifacts(conversation, 1)[0]
    engine.faults.corrupt = True
    stack.ask("two", conversation=conversation)
    engine.faults.corrupt = False
    stack.await_artifacts(conversation, 2)
    stack.ask("three", conversation=conversation)
    offers = [r["kv_transfer_params"]["everturn"]["offer"] for r in engine.requests]
    assert offers.count(bad) == 1
    assert offers[-1] is not None


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_c7_an_attempt_that_its_engine_gave_up_is_never_accepted(stack: Stack, reason: str) -> None:
    one = stack.start_engine("a", alias=True)
    two = stack.start_engine("a")
    one.faults.abort = two.faults.abort = 1
    one.faults.aborts_with = two.faults.aborts_with = reason
    conversation = stack.conversation()
    answer = stack.ask("hello", conversation=conversation)
    assert answer["attempt"] == 3
    failed = [e for e in stack.events(conversation) if isinstance(e, AttemptFailed)]
    assert [f"with '{reason}'" in e.reason for e in failed] == [True, True]
    assert text_of(answer) == one.cold_text(one.prompts[0])


def test_r6_an_engine_killed_mid_stream_is_replaced_and_its_words_are_not_sent_twice(stack: Stack) -> None:
    one = stack.start_engine("a", alias=True)
    one.faults.die_after = 3
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "hello", conversation=conversation)
        eventually(lambda: one.prompts)
        replacement = stack.start_engine("a")
        events = asked.result()
    expected = replacement.cold_text(replacement.prompts[0])
    assert deltas(events) == expected
    assert "everturn.attempt" in names(events)
    assert names(events)[-1] == "response.completed"
    assert events[-1]["response"]["attempt"] == 2
    failed = next(e for e in stack.events(conversation) if isinstance(e, AttemptFailed))
    assert failed.partial_text == "".join(expected.split(" ")[n] + " " for n in range(3))


def test_an_engine_that_goes_silent_mid_stream_is_given_up_and_its_words_are_not_sent_twice(
    database: str,
) -> None:
    with running_stack(database, engine_silence_s=1) as stack:
        silent = stack.start_engine("a", alias=True)
        silent.faults.hold_after = 3
        conversation = stack.conversation()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.stream, "hello", conversation=conversation)
            eventually(lambda: silent.faults.hold_after is None)
            replacement = stack.start_engine("a")
            events = asked.result()
        expected = replacement.cold_text(replacement.prompts[0])
        assert deltas(events) == expected
        assert names(events)[-1] == "response.completed"
        assert events[-1]["response"]["attempt"] == 2
        [failed] = [e for e in stack.events(conversation) if isinstance(e, AttemptFailed)]
        assert failed.partial_text == "".join(word + " " for word in expected.split(" ")[:3])
        assert "Timeout" in failed.reason


def test_an_answer_that_comes_while_its_engine_is_set_draining_comes_to_its_end(stack: Stack) -> None:
    draining = stack.start_engine("a", alias=True)
    draining.faults.hold_after = 3
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "hello", conversation=conversation)
        eventually(lambda: draining.faults.hold_after is None)
        other = stack.start_engine("a")
        assert stack.admin.post(f"/admin/engines/{draining.boot}/drain").status_code == 200
        draining.faults.release.set()
        events = asked.result()
    assert deltas(events) == draining.cold_text(draining.prompts[0])
    assert (names(events)[-1], events[-1]["response"]["attempt"]) == ("response.completed", 1)
    assert not [e for e in stack.events(conversation) if isinstance(e, AttemptFailed)]
    stack.ask("more", conversation=conversation)
    assert (len(draining.prompts), len(other.prompts)) == (1, 1)


def test_a_new_attempt_in_other_words_ends_the_stream_and_its_answer_is_kept(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    old.faults.hold_after = 3
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "hello", conversation=conversation)
        eventually(lambda: old.faults.hold_after is None)
        new = stack.start_engine("b", alias=True)
        old.kill()
        events = asked.result()
    prompt = render([{"role": "user", "content": "hello"}])
    assert new.cold_text(prompt) != old.cold_text(prompt)
    assert old.cold_text(prompt).startswith(deltas(events))
    assert names(events)[-1] == "response.failed"
    response = events[-1]["response"]
    assert response["error"]["code"] == "attempt_lost"
    eventually(lambda: stack.http.get(f"/v1/responses/{response['id']}").json()["status"] == "completed")
    answer = stack.http.get(f"/v1/responses/{response['id']}").json()
    assert text_of(answer) == new.cold_text(prompt)
    assert answer["revision"] == new.revision


def test_a_stream_whose_engine_dies_goes_on_in_its_words_although_the_alias_has_moved(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    old.faults.hold_after = 3
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "hello", conversation=conversation)
        eventually(lambda: old.faults.hold_after is None)
        same = stack.start_engine("a")
        new = stack.start_engine("b", alias=True)
        old.kill()
        events = asked.result()
    assert deltas(events) == old.cold_text(render([{"role": "user", "content": "hello"}]))
    assert names(events)[-1] == "response.completed"
    assert (events[-1]["response"]["revision"], events[-1]["response"]["attempt"]) == (old.revision, 2)
    assert (len(same.prompts), new.prompts) == (1, [])
    assert stack.ask("more", conversation=conversation)["revision"] == new.revision


def test_an_engine_that_is_gone_is_left_for_another_before_its_lease_is_out(stack: Stack) -> None:
    gone = stack.start_engine("a", alias=True, boot="boot_0")
    other = stack.start_engine("a", boot="boot_1")
    gone.kill()
    answer = stack.ask("hello")
    assert answer["attempt"] == 2
    assert len(other.prompts) == 1


def test_after_three_lost_attempts_the_turn_fails(database: str) -> None:
    with running_stack(database, engine_lease_s=60) as stack:
        for _ in range(3):
            stack.start_engine("a", alias=True).faults.abort = 5
        conversation = stack.conversation()
        answer = stack.post(input="hello", conversation=conversation)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_failed"
        assert [type(e) for e in stack.events(conversation)][-2:] == [AttemptFailed, TurnFailed]


@pytest.mark.parametrize(
    "lie", [{"revision": "rev_" + "0" * 64}, {"revision": None}, {"boot": "boot_other"}, {"prompt_tokens": 1}]
)
def test_an_answer_whose_evidence_is_not_what_was_pinned_is_not_accepted(
    database: str, lie: dict[str, object]
) -> None:
    with running_stack(database, turn_wait_s=0.5, engine_lease_s=60) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.evidence = lie
        conversation = stack.conversation()
        assert stack.post(input="hello", conversation=conversation).status_code == 503
        assert not any(isinstance(e, TurnCompleted) for e in stack.events(conversation))


def test_an_answer_without_evidence_is_not_accepted(database: str) -> None:
    with running_stack(database, turn_wait_s=0.5, engine_lease_s=60) as stack:
        stack.start_engine("a", alias=True).faults.forget = True
        conversation = stack.conversation()
        assert stack.post(input="hello", conversation=conversation).status_code == 503
        assert not any(isinstance(e, TurnCompleted) for e in stack.events(conversation))


def test_c3_a_late_attempt_is_fenced_off(stack: Stack) -> None:
    """Case C3."""
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.post, input="hello", conversation=conversation)
        eventually(lambda: engine.faults.hold_after is None)
        turn = stack.state(conversation).open_turn
        assert turn is not None
        with stack.database.begin() as conn:
            fail_as_orphan(conn, TENANT, ConversationId(conversation), TurnId(turn.id), now())
        engine.faults.release.set()
        answer = asked.result()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "orphaned"
    assert not any(isinstance(e, TurnCompleted) for e in stack.events(conversation))
    assert stack.ask("again", conversation=conversation)["status"] == "completed"


def test_a_commit_that_fails_is_no_success(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    forbid_completion(stack)
    answer = stack.post(input="hello", conversation=conversation)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "storage_unavailable"
    assert engine.prompts


def test_a_stream_whose_commit_fails_does_not_end_as_completed(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    forbid_completion(stack)
    events = stack.stream("hello", conversation=conversation)
    assert names(events)[-1] == "response.failed"
    assert "response.completed" not in names(events)


def test_the_refusal_of_a_lost_attempt_is_recorded_with_it(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    engine.faults.corrupt = True
    stack.ask("two", conversation=conversation)
    kinds = [type(e) for e in stack.events(conversation)]
    assert kinds[kinds.index(KvRefused) + 1] is AttemptFailed


def forbid_completion(stack: Stack) -> None:
    """The transaction that accepts an answer fails when it commits."""
    with stack.owner.begin() as conn:
        conn.execute(
            text(
                "CREATE FUNCTION public.refuse_completion() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no commit today' USING ERRCODE = '53100'; END $$"
            )
        )
        conn.execute(
            text(
                "CREATE CONSTRAINT TRIGGER refuse_completion AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW WHEN (NEW.type = 'turn.completed') EXECUTE FUNCTION public.refuse_completion()"
            )
        )
