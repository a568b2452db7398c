"""Rebuilds that have ended are counted on, and what was prefilled in the last minute is a rate."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from service.domain.events import ConversationId, TurnId
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.store import artifacts, rebuild_totals, rebuilds
from service.store.rebuild_totals import Ended
from service.store.rebuilds import RebuildState
from tests.store.histories import ACME, KV, NEW_ENGINE, NOW, V12, V13, published

INTERACTIVE, BACKGROUND = RebuildQueue.INTERACTIVE, RebuildQueue.BACKGROUND


def queued(conn: Connection, number: int, queue: RebuildQueue = INTERACTIVE) -> str:
    rebuild = f"rb_{number}"
    rebuilds.enqueue(
        conn,
        rebuild=rebuild,
        tenant=ACME,
        conversation=ConversationId(f"conv_{number}"),
        turn=TurnId(f"resp_{number}"),
        attempt=1,
        revision=V13,
        offer=KV,
        tokens_total=6000,
        queue=queue,
    )
    return rebuild


def done(conn: Connection, number: int, queue: RebuildQueue = INTERACTIVE, *, tokens: int = 6000) -> str:
    rebuild = queued(conn, number, queue)
    assert rebuilds.claim(conn, rebuild=rebuild, owner="worker", lease_s=60)
    rebuilds.finish(
        conn, rebuild=rebuild, fence=1, artifact=KV, engine_boot=NEW_ENGINE, tokens=tokens, refusal=None
    )
    return rebuild


def failed(conn: Connection, number: int) -> str:
    rebuild = queued(conn, number)
    assert rebuilds.claim(conn, rebuild=rebuild, owner="worker", lease_s=60)
    rebuilds.fail(conn, rebuild=rebuild, fence=1, reason="no engine")
    return rebuild


def backdate(conn: Connection, rebuild: str, *, began_s: float, ended_s: float | None) -> None:
    """So many seconds ago; still at work where it has not ended."""
    conn.execute(
        text("""
            UPDATE rebuilds SET started_at = clock_timestamp() - make_interval(secs => :began),
                finished_at = clock_timestamp() - make_interval(secs => :ended)
            WHERE rebuild_id = :rebuild
        """),
        {"rebuild": rebuild, "began": began_s, "ended": ended_s},
    )


def test_each_end_is_counted_by_queue_and_how(conn: Connection) -> None:
    done(conn, 1)
    done(conn, 2, BACKGROUND)
    failed(conn, 3)
    rebuilds.end_by_hand(conn, queued(conn, 4, BACKGROUND), RebuildState.SUPERSEDED, "cancelled by ada")
    queued(conn, 5)
    assert rebuild_totals.count_on(conn, Ended()).all == {
        ("interactive", "done"): 1,
        ("interactive", "failed"): 1,
        ("background", "done"): 1,
        ("background", "superseded"): 1,
    }


def test_counted_on_each_is_counted_once_also_those_of_long_ago(conn: Connection) -> None:
    backdate(conn, done(conn, 1), began_s=4000, ended_s=3600)
    done(conn, 2)
    first = rebuild_totals.count_on(conn, Ended())
    assert first.settled == {("interactive", "done"): 1}
    done(conn, 3)
    second = rebuild_totals.count_on(conn, first)
    third = rebuild_totals.count_on(conn, second)
    assert second.all == third.all == {("interactive", "done"): 3}


def test_what_was_counted_long_ago_is_not_looked_at_again(conn: Connection) -> None:
    backdate(conn, done(conn, 1), began_s=4000, ended_s=3600)
    first = rebuild_totals.count_on(conn, Ended())
    conn.execute(text("DELETE FROM rebuilds"))
    assert rebuild_totals.count_on(conn, first).all == {("interactive", "done"): 1}
    assert rebuild_totals.count_on(conn, Ended()).all == {}


def test_the_rate_is_that_of_the_last_minute(conn: Connection) -> None:
    backdate(conn, done(conn, 1, BACKGROUND), began_s=40, ended_s=10)
    backdate(conn, done(conn, 2, BACKGROUND), began_s=400, ended_s=70)
    assert rebuild_totals.tokens_per_s(conn) == {"background": pytest.approx(100, rel=0.01)}


def test_a_long_one_counts_as_it_goes_on_and_for_its_part_in_that_minute(conn: Connection) -> None:
    half = done(conn, 1)
    backdate(conn, half, began_s=90, ended_s=30)
    assert rebuild_totals.tokens_per_s(conn) == {"interactive": pytest.approx(50, rel=0.02)}
    conn.execute(text("DELETE FROM rebuilds"))
    running = queued(conn, 2)
    assert rebuilds.claim(conn, rebuild=running, owner="worker", lease_s=60)
    conn.execute(text("UPDATE rebuilds SET tokens_done = 1200"))
    backdate(conn, running, began_s=120, ended_s=None)
    assert rebuild_totals.tokens_per_s(conn) == {"interactive": pytest.approx(10, rel=0.02)}


def test_what_has_prefilled_nothing_is_no_rate(conn: Connection) -> None:
    queued(conn, 1)
    failed(conn, 2)
    assert rebuild_totals.tokens_per_s(conn) == {}


@pytest.mark.parametrize(("revision", "prefilled"), [(V13, 1500), (V12, 6000)])
def test_what_was_offered_of_the_same_revision_was_not_prefilled(
    conn: Connection, revision: RevisionDigest, prefilled: int
) -> None:
    offered = replace(published(expires_ms=1, tokens=4500), revision=revision)
    artifacts.record(conn, tenant=ACME, conversation=ConversationId("conv_1"), published=offered, now=NOW)
    backdate(conn, done(conn, 1), began_s=40, ended_s=10)
    assert rebuild_totals.tokens_per_s(conn) == {"interactive": pytest.approx(prefilled / 60, rel=0.01)}
