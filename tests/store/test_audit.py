"""The audit views tell of each turn who took part, and show what must never happen when it is put there."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Row, text

from service.domain.artifact import BootId
from service.domain.events import FLEET, AliasMoved, TenantId, TurnCompleted, TurnId, TurnPinned
from service.domain.fleet_events import EngineRegistered
from service.domain.revision import RevisionDigest
from service.store import event_store
from service.store.audit import read_view
from tests.store.histories import (
    ACME,
    CHAT,
    KV,
    NEW_ENGINE,
    NOW,
    OLD_ENGINE,
    TURN,
    V12,
    V13,
    append,
    completed,
    created,
    loaded,
    pinned,
    refused,
    said,
    started,
)

STRANGER = BootId("boot_stranger")


def register(conn: Connection, *engines: tuple[BootId, RevisionDigest]) -> None:
    for boot, revision in engines:
        event = EngineRegistered(boot=boot, revision=revision, address="http://127.0.0.1:1", role="both")
        append(conn, event, stream=f"engine/{boot}", tenant=FLEET)


def answer(conn: Connection, turn: TurnCompleted, pin: TurnPinned | None = None) -> Row[Any]:
    """Of the view, after a history that ends with this turn."""
    register(conn, (OLD_ENGINE, V12), (NEW_ENGINE, V13))
    append(conn, created(), said("hi"), started(), pin or pinned(), turn)
    return conn.execute(text("SELECT * FROM audit.turn_provenance")).one()


def hits(conn: Connection) -> list[Row[Any]]:
    return list(conn.execute(text("SELECT * FROM audit.cross_revision_hits")))


def test_a_turn_without_stored_kv_was_prefilled_where_it_was_decoded(conn: Connection) -> None:
    row = answer(conn, completed())
    assert (row.tenant_id, row.conversation_id, row.turn_id, row.attempt) == (ACME, CHAT, TURN, 1)
    assert (row.prefill_engine, row.prefill_revision) == (NEW_ENGINE, V13)
    assert (row.decode_engine, row.decode_revision, row.decode_registered_revision) == (NEW_ENGINE, V13, V13)
    assert (row.artifact_id, row.artifact_revision, row.tokens_loaded, row.kv_source) == (
        None,
        None,
        0,
        "none",
    )
    assert (row.first_divergence, row.cross_revision) == (None, False)


def test_a_turn_says_why_it_ran_as_it_did(conn: Connection) -> None:
    row = answer(conn, completed())
    assert (row.alias, row.on_upgrade, row.policy_level) == ("production", "replay", "default")
    assert (row.plan, row.plan_reason, row.kv_reason) == ("reuse", "same revision", "as planned")
    assert (row.prompt_tokens, row.output_tokens, row.completed_at) == (3, 2, NOW)


def test_a_turn_from_another_engines_kv_names_all_four_parties(conn: Connection) -> None:
    register(conn, (STRANGER, V13))
    row = answer(conn, completed(loaded=loaded(V13, STRANGER)))
    assert (row.requested_revision, row.pinned_revision) == (V13, V13)
    assert (row.prefill_engine, row.prefill_revision) == (STRANGER, V13)
    assert (row.artifact_id, row.artifact_revision, row.tokens_loaded) == (KV, V13, 32)
    assert (row.decode_engine, row.decode_revision) == (NEW_ENGINE, V13)
    assert (row.first_divergence, row.cross_revision) == (None, False)
    assert hits(conn) == []


def test_a_turn_from_another_revisions_kv_shows_up(conn: Connection) -> None:
    row = answer(conn, completed(loaded=loaded(V12, OLD_ENGINE)))
    assert row.first_divergence == f"artifact revision {V12} is not decode revision {V13}"
    assert row.cross_revision
    [hit] = hits(conn)
    assert (hit.turn_id, hit.artifact_revision, hit.decode_revision, hit.tokens_loaded) == (
        TURN,
        V12,
        V13,
        32,
    )


def test_another_revisions_kv_shows_up_even_if_nobody_knows_its_producer(conn: Connection) -> None:
    row = answer(conn, completed(loaded=loaded(V12, STRANGER)))
    assert row.first_divergence == f"prefill engine {STRANGER} never registered"
    assert row.cross_revision
    assert len(hits(conn)) == 1


def test_an_artifact_that_lies_about_its_revision_shows_up_by_its_producer(conn: Connection) -> None:
    row = answer(conn, completed(loaded=loaded(V13, OLD_ENGINE)))
    assert row.first_divergence == (
        f"prefill engine {OLD_ENGINE} registered as {V12}, which is not artifact revision {V13}"
    )
    assert row.cross_revision
    assert len(hits(conn)) == 1


@pytest.mark.parametrize(
    ("turn", "pin", "divergence"),
    [
        (completed(), pinned(revision=V12), f"pinned revision {V12} is not requested revision {V13}"),
        (
            completed(loaded=loaded(V13, STRANGER)),
            pinned(),
            f"prefill engine {STRANGER} never registered",
        ),
        (
            completed(measured=V12),
            pinned(),
            f"decode engine {NEW_ENGINE} registered as {V13}, which is not decode revision {V12}",
        ),
        (
            completed(engine=OLD_ENGINE, measured=V12),
            pinned(),
            f"decode revision {V12} is not requested revision {V13}",
        ),
        (
            replace(completed(loaded=loaded(V13, NEW_ENGINE)), engine=STRANGER),
            pinned(),
            f"decode engine {STRANGER} never registered",
        ),
        (completed(attempt=2), pinned(), "the attempt was never pinned"),
    ],
)
def test_the_first_place_where_the_parties_part_is_named(
    conn: Connection, turn: TurnCompleted, pin: TurnPinned, divergence: str
) -> None:
    row = answer(conn, turn, pin)
    assert row.first_divergence == divergence
    assert not row.cross_revision


def test_the_attempt_that_completed_is_the_one_that_is_told(conn: Connection) -> None:
    register(conn, (OLD_ENGINE, V12), (NEW_ENGINE, V13))
    first = replace(pinned(revision=V12, engine=OLD_ENGINE), reason="on_upgrade is stay")
    append(conn, created(), said("hi"), started(), first, pinned(attempt=2), completed(attempt=2))
    row = conn.execute(text("SELECT attempt, plan_reason FROM audit.turn_provenance")).one()
    assert (row.attempt, row.plan_reason) == (2, "same revision")


def test_a_turn_that_did_not_complete_has_no_provenance(conn: Connection) -> None:
    append(conn, created(), said("hi"), started(), pinned())
    assert conn.execute(text("SELECT * FROM audit.turn_provenance")).all() == []


def test_tenants_with_the_same_turn_id_are_not_mixed(conn: Connection) -> None:
    answer(conn, completed())
    other = replace(pinned(), reason="theirs")
    append(conn, started(), other, completed(), tenant=TenantId("other"))
    rows = conn.execute(text("SELECT tenant_id, plan_reason FROM audit.turn_provenance ORDER BY 1")).all()
    assert rows == [(ACME, "same revision"), ("other", "theirs")]


def test_a_refusal_names_both_sides_and_the_fields_that_differ(conn: Connection) -> None:
    append(conn, created(), said("hi"), started(), pinned(), refused())
    row = conn.execute(text("SELECT * FROM audit.refusals")).one()
    assert (row.tenant_id, row.conversation_id, row.turn_id, row.attempt) == (ACME, CHAT, TURN, 1)
    assert (row.artifact_id, row.artifact_revision, row.artifact_producer) == (KV, V12, OLD_ENGINE)
    assert (row.engine, row.engine_revision) == (NEW_ENGINE, V13)
    assert (row.reason, row.differing) == ("revision_mismatch", ["kv.weights", "kv.adapter"])
    assert (row.detail, row.refused_at) == ("made under another revision", NOW)


def test_a_refusal_of_what_cannot_be_told_is_still_listed(conn: Connection) -> None:
    blind = replace(refused().refusal, differing=(), artifact_revision=None, artifact_producer=None)
    event = replace(refused(), engine_revision=None, refusal=blind)
    append(conn, created(), said("hi"), started(), pinned(), event)
    row = conn.execute(text("SELECT * FROM audit.refusals")).one()
    assert (row.artifact_revision, row.engine_revision, row.differing) == (None, None, [])


def test_pages_of_provenance_follow_each_other(conn: Connection) -> None:
    for number in range(5):
        turn = TurnId(f"resp_{number}")
        append(
            conn, created(), said("hi"), started(turn), pinned(turn), completed(turn), stream=f"conv_{number}"
        )
    first = read_view(conn, "turn_provenance", filters={}, after=None, limit=3)
    after = str(first[-1]["position"])
    second = read_view(conn, "turn_provenance", filters={}, after=after, limit=3)
    third = read_view(conn, "turn_provenance", filters={}, after=str(second[-1]["position"]), limit=3)
    assert [row["turn_id"] for row in (*first, *second)] == [f"resp_{number}" for number in range(5)]
    assert third == []


MINUTES = (0, 10, 20, 5, 30, 30)
"""At which an alias was moved, in the order of the versions: a clock that was put back, and two moves at one time."""


def test_a_plan_is_told_with_the_newest_move_of_its_alias_that_was_made_by_then(conn: Connection) -> None:
    for version, minute in enumerate(MINUTES):
        moved = AliasMoved(alias="production", revision=V13, previous=None, by=f"key_{version}")
        event_store.append(
            conn,
            tenant=FLEET,
            stream="alias/production",
            expected_version=version,
            events=[moved],
            now=NOW + timedelta(minutes=minute),
        )
    planned = range(-1, 40)
    for number, minute in enumerate(planned):
        turn = TurnId(f"resp_{number}")
        event_store.append(
            conn,
            tenant=ACME,
            stream=CHAT,
            expected_version=2 * number,
            events=[started(turn), pinned(turn)],
            now=NOW + timedelta(minutes=minute),
        )
    told = conn.execute(text("SELECT alias_moved_by FROM audit.decisions ORDER BY position")).scalars().all()
    newest = [max((v for v, at in enumerate(MINUTES) if at <= minute), default=None) for minute in planned]
    assert told == [None if version is None else f"key_{version}" for version in newest]


def test_a_plan_whose_alias_was_never_moved_is_told(conn: Connection) -> None:
    moved = AliasMoved(alias="staging", revision=V13, previous=None, by="key_1")
    append(conn, moved, stream="alias/staging", tenant=FLEET)
    append(conn, started(), pinned())
    row = conn.execute(text("SELECT * FROM audit.decisions")).one()
    assert (row.turn_id, row.alias, row.alias_revision) == (TURN, "production", None)
