"""Each transaction of a turn: what it records, and what it refuses to record."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from service import orphan_flow, rebuild_run_flow, turn_flow, turn_log
from service.domain.artifact import ArtifactId, BootId, RefusalReason
from service.domain.errors import FenceLost, RebuildFailed, RevisionMismatch
from service.domain.events import (
    AttemptFailed,
    KvRebuilt,
    KvRefused,
    PlanKind,
    TurnCompleted,
    TurnFailed,
    TurnPinned,
)
from service.domain.evidence import Loaded, Refusal
from service.domain.revision import RevisionDigest
from service.store import artifacts, rebuilds, turns
from service.store.turns import OpenTurn
from service.turn_flow import NotPinned
from tests.flows.fleet import (
    ACME,
    NOW,
    PROMPT,
    Running,
    add_engine,
    answered,
    complete,
    completed,
    events_of,
    evidence,
    move_alias,
    pin,
    plan,
    published,
)
from tests.flows.orphans import fail_as_orphan

OTHER = RevisionDigest("rev_" + "0" * 64)
REFUSAL = Refusal(
    artifact="kv_" + "0" * 32, reason=RefusalReason.REVISION_MISMATCH, detail="d", differing=("weights",)
)


def upgraded(conn: Connection) -> tuple[Running, turn_flow.Pinned, rebuilds.Claim]:
    """A turn that was pinned after an upgrade, and its rebuild in a worker's hands."""
    running = answered(conn, "a")
    move_alias(conn, add_engine(conn, "b", "boot_b"))
    pinned = pin(conn, running)
    assert pinned.rebuild is not None
    claim = rebuilds.claim(conn, rebuild=pinned.rebuild, owner="worker", lease_s=60)
    assert claim is not None
    return running, pinned, claim


def record(conn: Connection, claim: rebuilds.Claim, pinned: turn_flow.Pinned, **changes: object) -> None:
    rebuild_run_flow.record_rebuild(
        conn, claim=claim, evidence=evidence(pinned.engine, **changes), engine=pinned.engine, now=NOW
    )


def test_pinning_after_an_upgrade_queues_a_rebuild_in_the_same_transaction(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    assert pinned.pinned.plan is PlanKind.REBUILD
    assert pinned.pinned.engine == "boot_b"
    assert (claim.turn, claim.attempt, claim.tokens_total) == (running.turn, 1, len(PROMPT) + 3)
    assert rebuild_run_flow.rebuild_prompt(conn, claim) == (*PROMPT, 7, 8, 9)


def test_an_avoided_engine_is_not_pinned_and_nothing_is_recorded(conn: Connection) -> None:
    running = answered(conn)
    before = events_of(conn, running)
    planned = plan(conn, running, "boot_a")
    assert planned == NotPinned(reason=planned.reason, final=False)  # type: ignore[union-attr]
    assert events_of(conn, running) == before


def test_a_pinned_turn_is_not_pinned_again(conn: Connection) -> None:
    running = answered(conn)
    pin(conn, running)
    with pytest.raises(FenceLost, match=r"pinned \(attempt 1 on engine boot_a\).* goes on"):
        plan(conn, running)


def lost(conn: Connection, running: Running, pinned: turn_flow.Pinned) -> None:
    failed = AttemptFailed(turn=running.turn, attempt=pinned.pinned.attempt, reason="gone", partial_text="an")
    turn_flow.fail_attempt(
        conn, tenant=ACME, conversation=running.conversation, refusal=None, failed=failed, now=NOW
    )


def test_after_a_lost_attempt_the_turn_stays_on_its_revision_while_that_is_served(conn: Connection) -> None:
    running = answered(conn, "a")
    first = pin(conn, running)
    add_engine(conn, "a", "boot_2")
    move_alias(conn, add_engine(conn, "b", "boot_b"))
    lost(conn, running, first)
    second = plan(conn, running, "boot_a")
    assert isinstance(second, turn_flow.Pinned)
    assert (second.pinned.engine, second.pinned.revision) == ("boot_2", first.pinned.revision)
    assert second.pinned.reason == "the attempt before was on it: same revision; no stored KV"
    lost(conn, running, second)
    third = plan(conn, running, "boot_a", "boot_2")
    assert isinstance(third, turn_flow.Pinned)
    assert (third.pinned.engine, third.pinned.plan) == ("boot_b", PlanKind.REBUILD)


def test_an_attempt_that_had_only_waited_for_its_rebuild_holds_the_turn_on_nothing(conn: Connection) -> None:
    running, pinned, _ = upgraded(conn)
    lost(conn, running, pinned)
    move_alias(conn, add_engine(conn, "a", "boot_2"))
    again = pin(conn, running)
    assert again.pinned.revision != pinned.pinned.revision


def test_an_attempt_that_had_its_rebuild_holds_the_turn_on_its_revision(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    record(conn, claim, pinned)
    lost(conn, running, pinned)
    move_alias(conn, add_engine(conn, "a", "boot_2"))
    again = pin(conn, running)
    assert (again.pinned.revision, again.pinned.plan) == (pinned.pinned.revision, PlanKind.REUSE)


def test_a_turn_that_ended_while_it_waited_is_not_planned_any_more(conn: Connection) -> None:
    running = answered(conn)
    fail_as_orphan(conn, ACME, running.conversation, running.turn, NOW)
    with pytest.raises(FenceLost, match="Its client asks anew"):
        plan(conn, running, "boot_a")


def test_a_recorded_rebuild_leaves_refusal_rebuild_artifact_and_row(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    record(conn, claim, pinned, refusal=REFUSAL)
    refused, rebuilt = events_of(conn, running)[-2:]
    assert refused == KvRefused(
        turn=running.turn,
        attempt=1,
        engine=BootId("boot_b"),
        engine_revision=pinned.engine.revision,
        refusal=REFUSAL,
    )
    assert isinstance(rebuilt, KvRebuilt)
    assert (rebuilt.rebuild, rebuilt.producer, rebuilt.tokens) == (claim.rebuild, "boot_b", 96)
    stored = artifacts.of_conversation(conn, ACME, running.conversation)
    assert [a.artifact for a in stored] == [rebuilt.artifact]
    row = rebuilds.find(conn, claim.rebuild)
    assert row is not None
    assert (row.state, row.artifact, row.refusal) == (rebuilds.RebuildState.DONE, rebuilt.artifact, REFUSAL)


@pytest.mark.parametrize("field", ["evidence", "published", "loaded"])
def test_a_rebuild_on_another_revision_is_not_recorded(conn: Connection, field: str) -> None:
    running, pinned, claim = upgraded(conn)
    before = events_of(conn, running)
    lie = replace(published(pinned.engine), revision=OTHER)
    foreign = Loaded(
        artifact=ArtifactId("kv_" + "0" * 32),
        revision=OTHER,
        producer=BootId("boot_a"),
        tokens=4,
        bytes=4,
        seconds=0.1,
    )
    changes: dict[str, dict[str, Any]] = {
        "evidence": {"revision": OTHER},
        "published": {"published": lie},
        "loaded": {"loaded": foreign},
    }
    with pytest.raises(RevisionMismatch, match=OTHER):
        record(conn, claim, pinned, **changes[field])
    assert events_of(conn, running) == before


def test_a_rebuild_that_published_nothing_has_failed(conn: Connection) -> None:
    _, pinned, claim = upgraded(conn)
    with pytest.raises(RebuildFailed, match="disk full"):
        record(conn, claim, pinned, published=None, publish_failure="disk full")


def test_a_rebuild_for_a_turn_that_went_on_is_fenced_off(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    complete(conn, running, completed(pinned))
    with pytest.raises(FenceLost):
        record(conn, claim, pinned)


def test_a_worker_that_lost_its_claim_records_nothing(engine: Engine) -> None:
    with engine.begin() as conn:
        running, pinned, claim = upgraded(conn)
        rebuilds.supersede(conn, turn=running.turn)
    with pytest.raises(FenceLost), engine.begin() as conn:
        record(conn, claim, pinned)
    with engine.begin() as conn:
        assert not any(isinstance(e, KvRebuilt) for e in events_of(conn, running))
        assert artifacts.of_conversation(conn, ACME, running.conversation) == []


def test_completing_closes_the_turn_and_calls_off_its_rebuild(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    complete(conn, running, completed(pinned))
    row = rebuilds.find(conn, claim.rebuild)
    assert row is not None
    assert row.state is rebuilds.RebuildState.SUPERSEDED
    assert not turns.renew_lease(conn, turn=running.turn, owner="api_test", lease_s=60)


def test_a_turn_is_completed_once(conn: Connection) -> None:
    running = answered(conn)
    pinned = pin(conn, running)
    complete(conn, running, completed(pinned))
    with pytest.raises(FenceLost):
        complete(conn, running, completed(pinned))


def test_c3_an_older_attempt_is_fenced_off_by_a_newer_one(conn: Connection) -> None:
    """Case C3."""
    running = answered(conn)
    first = pin(conn, running)
    turn_flow.fail_attempt(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        refusal=None,
        failed=AttemptFailed(turn=running.turn, attempt=1, reason="gone"),
        now=NOW,
    )
    second = pin(conn, running)
    assert second.pinned.attempt == 2
    with pytest.raises(FenceLost):
        complete(conn, running, completed(first))
    complete(conn, running, completed(second))


def test_kv_of_a_rebuild_is_reused_by_the_next_attempt(conn: Connection) -> None:
    running, pinned, claim = upgraded(conn)
    record(conn, claim, pinned)
    turn_flow.fail_attempt(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        refusal=None,
        failed=AttemptFailed(turn=running.turn, attempt=1, reason="gone"),
        now=NOW,
    )
    again = pin(conn, running)
    assert (again.pinned.plan, again.pinned.offer) == (PlanKind.REUSE, "kv_" + "a" * 32)
    assert again.rebuild is None


def test_an_orphan_is_failed_whatever_it_was_doing_and_the_conversation_goes_on(conn: Connection) -> None:
    running, _, _ = upgraded(conn)
    fail_as_orphan(conn, ACME, running.conversation, running.turn, NOW)
    kinds = [type(e) for e in events_of(conn, running)]
    assert kinds[-3:] == [TurnPinned, AttemptFailed, TurnFailed]
    assert turns.orphaned(conn, 10) == []


def test_a_turn_whose_owner_came_back_is_left_to_it(conn: Connection) -> None:
    running, _, _ = upgraded(conn)
    before = events_of(conn, running)
    orphan = OpenTurn(tenant=ACME, conversation=running.conversation, turn=running.turn)
    assert not orphan_flow.settle(conn, orphan, finish=True, now=NOW)
    assert events_of(conn, running) == before


def test_a_completed_turn_is_not_failed_as_an_orphan(conn: Connection) -> None:
    running = answered(conn)
    complete(conn, running, completed(pin(conn, running)))
    orphan = OpenTurn(tenant=ACME, conversation=running.conversation, turn=running.turn)
    assert not orphan_flow.settle(conn, orphan, finish=True, now=NOW)
    assert isinstance(events_of(conn, running)[-1], TurnCompleted)


def test_only_engines_that_may_prefill_are_picked_for_a_rebuild(conn: Connection) -> None:
    revision = add_engine(conn, "b", "boot_b")
    picked = rebuild_run_flow.pick_rebuild_engine(conn, revision)
    assert picked is not None
    assert picked.boot == "boot_b"
    assert rebuild_run_flow.pick_rebuild_engine(conn, revision, avoid={BootId("boot_b")}) is None
    assert rebuild_run_flow.pick_rebuild_engine(conn, OTHER) is None


def test_a_failed_rebuild_keeps_its_reason(conn: Connection) -> None:
    _, _, claim = upgraded(conn)
    rebuild_run_flow.fail_rebuild(conn, claim=claim, reason="no engine")
    row = rebuilds.find(conn, claim.rebuild)
    assert row is not None
    assert (row.state, row.reason) == (rebuilds.RebuildState.FAILED, "no engine")


def test_what_was_published_is_offered_to_the_next_turn(conn: Connection) -> None:
    running = answered(conn)
    first = pin(conn, running)
    turn_log.record_published(
        conn, tenant=ACME, conversation=running.conversation, published=published(first.engine), now=NOW
    )
    complete(conn, running, completed(first))
    assert first.pinned.offer is None
    stored = artifacts.of_conversation(conn, ACME, running.conversation)
    assert [a.artifact for a in stored] == [ArtifactId("kv_" + "a" * 32)]
