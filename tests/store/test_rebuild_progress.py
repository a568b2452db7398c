"""A claimed rebuild is brought on by who holds it, is gone on with by who takes it over, and gives way to a turn."""

import pytest
from sqlalchemy import Connection

from service.domain.artifact import ArtifactId
from service.domain.errors import FenceLost
from service.domain.events import ConversationId, TurnId
from service.domain.plan import RebuildQueue
from service.store import rebuild_progress, rebuilds
from service.store.rebuilds import Claim, RebuildState
from tests.store.histories import ACME, CHAT, KV, NEW_ENGINE, TURN, V13, refused

ONE, TWO = ArtifactId("kv_11111111"), ArtifactId("kv_22222222")
BACKGROUND, INTERACTIVE = RebuildQueue.BACKGROUND, RebuildQueue.INTERACTIVE


def queued(conn: Connection, queue: RebuildQueue, number: int = 1) -> str:
    rebuild = f"rb_{number}"
    rebuilds.enqueue(
        conn,
        rebuild=rebuild,
        tenant=ACME,
        conversation=CHAT if number == 1 else ConversationId(f"conv_{number}"),
        turn=TURN if number == 1 else TurnId(f"resp_{number}"),
        attempt=1,
        revision=V13,
        offer=KV,
        tokens_total=96,
        queue=queue,
    )
    return rebuild


def claimed(conn: Connection, rebuild: str = "rb_1", *, lease_s: float = 60) -> Claim:
    claim = rebuilds.claim(conn, rebuild=rebuild, owner="worker", lease_s=lease_s)
    assert claim is not None
    return claim


def moved(conn: Connection, claim: Claim, artifact: ArtifactId, tokens: int, **more: object) -> Claim:
    given = {"refusal": None} | more
    return rebuild_progress.move(
        conn,
        claim,
        artifact=artifact,
        engine_boot=NEW_ENGINE,
        tokens=tokens,
        **given,  # type: ignore[arg-type]
    )


def row(conn: Connection) -> rebuilds.Rebuild:
    found = rebuilds.find(conn, "rb_1")
    assert found is not None
    return found


def test_who_takes_it_over_begins_with_what_was_published_last(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    first = claimed(conn, lease_s=0)
    assert (first.partial, first.tokens_done) == (None, 0)
    moved(conn, moved(conn, first, ONE, 32), TWO, 64)
    second = claimed(conn)
    assert (second.fence, second.partial, second.tokens_done) == (2, TWO, 64)
    assert row(conn).partials == (ONE, TWO)


def test_who_has_lost_the_fence_holds_nothing(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    first = claimed(conn, lease_s=0)
    claimed(conn)
    with pytest.raises(FenceLost, match="fence 1"):
        rebuild_progress.hold(conn, first)


def test_who_holds_it_sees_the_turn_that_has_taken_it_over(conn: Connection) -> None:
    queued(conn, BACKGROUND)
    claim = claimed(conn)
    rebuilds.join(
        conn,
        rebuild="rb_9",
        tenant=ACME,
        conversation=CHAT,
        turn=TurnId("resp_9"),
        attempt=2,
        revision=V13,
        offer=None,
        tokens_total=128,
    )
    held = rebuild_progress.hold(conn, claim)
    assert (held.turn, held.attempt, held.tokens_total, held.fence) == ("resp_9", 2, 128, 1)


def test_claims_that_bring_it_no_further_are_counted(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    claimed(conn, lease_s=0)
    barren = claimed(conn, lease_s=0)
    assert barren.claims == 2
    moved(conn, barren, ONE, 32)
    assert claimed(conn).claims == 1


def test_a_refusal_of_the_first_chunk_outlives_the_others(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    refusal = refused().refusal
    claim = moved(conn, moved(conn, claimed(conn), ONE, 32, refusal=refusal), TWO, 64)
    rebuilds.finish(
        conn, rebuild="rb_1", fence=claim.fence, artifact=KV, engine_boot=NEW_ENGINE, tokens=96, refusal=None
    )
    assert row(conn).refusal == refusal


def test_a_warm_up_gives_way_to_what_a_turn_waits_for(conn: Connection) -> None:
    queued(conn, BACKGROUND)
    claim = moved(conn, claimed(conn), ONE, 32)
    assert not rebuild_progress.give_way(conn, claim)
    queued(conn, INTERACTIVE, 2)
    assert rebuild_progress.give_way(conn, claim)
    left = row(conn)
    assert (left.state, left.owner, left.tokens_done, left.partials) == (
        RebuildState.QUEUED,
        None,
        32,
        (ONE,),
    )
    with pytest.raises(FenceLost, match="it waits for a worker"):
        rebuild_progress.hold(conn, claim)


def test_nothing_gives_way_to_what_somebody_works_on(conn: Connection) -> None:
    queued(conn, BACKGROUND)
    claim = claimed(conn)
    claimed(conn, queued(conn, INTERACTIVE, 2))
    assert not rebuild_progress.give_way(conn, claim)


def test_what_a_turn_waits_for_gives_way_to_nothing(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    claim = claimed(conn)
    queued(conn, INTERACTIVE, 2)
    assert not rebuild_progress.give_way(conn, claim, anyway=True)


def test_a_warm_up_is_handed_over_when_its_time_is_up(conn: Connection) -> None:
    queued(conn, BACKGROUND)
    assert rebuild_progress.give_way(conn, claimed(conn), anyway=True)


def test_an_erasure_finds_what_was_published_on_the_way_also_by_who_had_lost_the_fence(
    conn: Connection,
) -> None:
    queued(conn, INTERACTIVE)
    moved(conn, claimed(conn), ONE, 32)
    rebuild_progress.remember(conn, "rb_1", TWO)
    assert set(rebuild_progress.made_on_the_way(conn, ACME, CHAT)) == {ONE, TWO}
    assert rebuild_progress.hold(conn, claimed_again(conn)).partial == ONE, "nobody goes on from that"
    assert rebuild_progress.made_on_the_way(conn, ACME, ConversationId("conv_9")) == []


def test_what_came_too_late_is_not_gone_on_from_by_who_has_nothing_yet(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    claimed(conn, lease_s=0)
    rebuild_progress.remember(conn, "rb_1", ONE)
    assert claimed(conn).partial is None


def claimed_again(conn: Connection) -> Claim:
    assert rebuilds.renew(conn, rebuild="rb_1", fence=1, lease_s=0)
    return claimed(conn)


def test_one_look_tells_of_all_that_are_asked_for_and_are_there(conn: Connection) -> None:
    queued(conn, INTERACTIVE)
    moved(conn, claimed(conn), ONE, 32)
    found = rebuild_progress.look(conn, {"rb_1", "rb_none"})
    assert found == {"rb_1": row(conn)}
