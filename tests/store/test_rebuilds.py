"""Rebuilds are claimed by one worker at a time, and a worker that lost its claim changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from service.domain.artifact import BootId
from service.domain.errors import FenceLost, VersionConflict
from service.domain.events import ConversationId, TurnId
from service.domain.plan import RebuildQueue
from service.store import rebuild_listing, rebuilds
from service.store.rebuilds import Claim, Rebuild, RebuildState
from tests.store.histories import ACME, CHAT, KV, NEW_ENGINE, TURN, V13, refused

RACERS = 8
NEXT = TurnId("resp_2")
BACKGROUND = RebuildQueue.BACKGROUND


def enqueue(
    conn: Connection,
    rebuild: str = "rb_1",
    *,
    chat: ConversationId = CHAT,
    turn: TurnId = TURN,
    attempt: int = 1,
    queue: RebuildQueue = RebuildQueue.INTERACTIVE,
) -> None:
    rebuilds.enqueue(
        conn,
        rebuild=rebuild,
        tenant=ACME,
        conversation=chat,
        turn=turn,
        attempt=attempt,
        revision=V13,
        offer=KV,
        tokens_total=96,
        queue=queue,
    )


def join(conn: Connection, rebuild: str = "rb_2", *, turn: TurnId = NEXT, tokens: int = 120) -> str:
    return rebuilds.join(
        conn,
        rebuild=rebuild,
        tenant=ACME,
        conversation=CHAT,
        turn=turn,
        attempt=1,
        revision=V13,
        offer=KV,
        tokens_total=tokens,
    )


def claim(conn: Connection, *, owner: str = "worker-1", lease_s: float = 60) -> Claim | None:
    return rebuilds.claim(conn, rebuild="rb_1", owner=owner, lease_s=lease_s)


def finish(conn: Connection, *, fence: int) -> None:
    rebuilds.finish(
        conn, rebuild="rb_1", fence=fence, artifact=KV, engine_boot=NEW_ENGINE, tokens=96, refusal=None
    )


def found(conn: Connection) -> Rebuild:
    rebuild = rebuilds.find(conn, "rb_1")
    assert rebuild is not None
    return rebuild


def test_a_claim_holds_all_that_the_work_needs(conn: Connection) -> None:
    enqueue(conn)
    assert claim(conn) == Claim(
        rebuild="rb_1",
        fence=1,
        tenant=ACME,
        conversation=CHAT,
        turn=TURN,
        attempt=1,
        revision=V13,
        offer=KV,
        tokens_total=96,
    )
    assert found(conn).state is RebuildState.RUNNING


def test_an_unknown_rebuild_is_nobodys(conn: Connection) -> None:
    assert claim(conn) is None
    assert rebuilds.find(conn, "rb_1") is None


def test_a_duplicate_delivery_finds_the_work_taken(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    assert claim(conn, owner="worker-2") is None
    assert found(conn).owner == "worker-1"


@pytest.mark.parametrize("end", ["finish", "fail", "supersede"])
def test_a_duplicate_delivery_finds_the_work_ended(conn: Connection, end: str) -> None:
    enqueue(conn)
    claim(conn, lease_s=0)
    match end:
        case "finish":
            finish(conn, fence=1)
        case "fail":
            rebuilds.fail(conn, rebuild="rb_1", fence=1, reason="no engine")
        case _:
            rebuilds.supersede(conn, turn=TURN)
    assert claim(conn) is None


def test_a_duplicate_delivery_returns_at_once_while_the_row_is_locked(engine: Engine) -> None:
    with engine.begin() as conn:
        enqueue(conn)
    with engine.connect() as one, engine.connect() as other:
        assert claim(one) is not None
        other.execute(text("SET LOCAL lock_timeout = '1ms'"))
        assert claim(other) is None


def test_of_racing_workers_one_claims(engine: Engine) -> None:
    with engine.begin() as conn:
        enqueue(conn)
    ready = Barrier(RACERS)

    def race(number: int) -> Claim | None:
        with engine.begin() as conn:
            ready.wait()
            return claim(conn, owner=f"worker-{number}")

    with ThreadPoolExecutor(RACERS) as pool:
        claims = [result for result in pool.map(race, range(RACERS)) if result is not None]
    assert [result.fence for result in claims] == [1]


def test_an_expired_claim_goes_to_the_next_worker_under_a_higher_fence(conn: Connection) -> None:
    enqueue(conn)
    claim(conn, lease_s=0)
    taken = claim(conn, owner="worker-2")
    assert taken is not None
    assert taken.fence == 2


def test_the_worker_that_was_replaced_can_neither_renew_finish_nor_fail(conn: Connection) -> None:
    enqueue(conn)
    claim(conn, lease_s=0)
    claim(conn, owner="worker-2")
    assert not rebuilds.renew(conn, rebuild="rb_1", fence=1, lease_s=60)
    with pytest.raises(FenceLost, match=r"fence 1: worker-2 holds it by fence 2, .* not recorded"):
        finish(conn, fence=1)
    with pytest.raises(FenceLost, match="fence 1"):
        rebuilds.fail(conn, rebuild="rb_1", fence=1, reason="too slow")
    assert found(conn).state is RebuildState.RUNNING
    finish(conn, fence=2)


def test_a_late_worker_whom_nobody_replaced_may_finish(conn: Connection) -> None:
    enqueue(conn)
    claim(conn, lease_s=0)
    finish(conn, fence=1)
    assert found(conn).state is RebuildState.DONE


def test_a_rebuild_finishes_once(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    finish(conn, fence=1)
    with pytest.raises(FenceLost):
        finish(conn, fence=1)


def test_what_was_superseded_cannot_finish(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    rebuilds.supersede(conn, turn=TURN)
    with pytest.raises(FenceLost, match="it is superseded"):
        finish(conn, fence=1)
    assert found(conn).state is RebuildState.SUPERSEDED


def test_superseding_leaves_other_turns_and_ended_rebuilds(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    finish(conn, fence=1)
    enqueue(conn, "rb_2", turn=TurnId("resp_2"))
    rebuilds.supersede(conn, turn=TURN)
    other = rebuilds.find(conn, "rb_2")
    assert found(conn).state is RebuildState.DONE
    assert other is not None
    assert other.state is RebuildState.QUEUED


def test_a_renewed_lease_keeps_others_out(conn: Connection) -> None:
    enqueue(conn)
    claim(conn, lease_s=0)
    assert rebuilds.renew(conn, rebuild="rb_1", fence=1, lease_s=60)
    assert claim(conn, owner="worker-2") is None


def test_an_attempt_has_one_active_rebuild(conn: Connection) -> None:
    enqueue(conn)
    with pytest.raises(VersionConflict, match="Attempt 1 of turn resp_1"):
        enqueue(conn, "rb_2")


def test_an_attempt_may_be_rebuilt_again_after_a_failure(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    rebuilds.fail(conn, rebuild="rb_1", fence=1, reason="the engine died")
    enqueue(conn, "rb_2")
    assert (found(conn).state, found(conn).reason) == (RebuildState.FAILED, "the engine died")


def test_a_conversation_is_rebuilt_once_at_a_time_under_a_revision(conn: Connection) -> None:
    enqueue(conn)
    with pytest.raises(VersionConflict, match=f"{CHAT} is being rebuilt under {V13} already"):
        enqueue(conn, "rb_2", turn=NEXT)


def test_a_turn_takes_over_what_is_queued_or_running_and_nothing_is_queued_beside_it(
    conn: Connection,
) -> None:
    enqueue(conn, queue=BACKGROUND)
    held = claim(conn)
    assert join(conn) == "rb_1"
    row = found(conn)
    assert (row.turn, row.attempt, row.queue, row.tokens_total) == (NEXT, 1, RebuildQueue.INTERACTIVE, 120)
    assert (row.state, row.fence, row.owner) == (RebuildState.RUNNING, 1, "worker-1")
    assert held is not None
    assert rebuilds.renew(conn, rebuild="rb_1", fence=held.fence, lease_s=60)
    assert rebuilds.find(conn, "rb_2") is None


def test_what_nobody_has_claimed_offers_what_the_turn_has_to_offer(conn: Connection) -> None:
    enqueue(conn, queue=BACKGROUND)
    conn.execute(text("UPDATE rebuilds SET offer = NULL"))
    join(conn)
    assert found(conn).offer == KV


def test_what_somebody_has_claimed_keeps_to_its_own_offer(conn: Connection) -> None:
    enqueue(conn, queue=BACKGROUND)
    conn.execute(text("UPDATE rebuilds SET offer = NULL"))
    claim(conn)
    join(conn)
    assert found(conn).offer is None


def test_a_turn_that_finds_none_gets_one_of_its_own(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    finish(conn, fence=1)
    assert join(conn) == "rb_2"
    row = rebuilds.find(conn, "rb_2")
    assert row is not None
    assert (row.state, row.queue, row.offer) == (RebuildState.QUEUED, RebuildQueue.INTERACTIVE, KV)


def test_of_a_turn_and_warm_ups_that_race_all_share_one(engine: Engine) -> None:
    ready = Barrier(RACERS)

    def race(number: int) -> str:
        with engine.begin() as conn:
            ready.wait()
            if number:
                return join(conn, f"rb_{number}", turn=TurnId(f"resp_next_{number}"))
            try:
                with conn.begin_nested():
                    enqueue(conn, "rb_0", queue=BACKGROUND)
            except VersionConflict:
                return ""
            return "rb_0"

    with ThreadPoolExecutor(RACERS) as pool:
        names = set(pool.map(race, range(RACERS))) - {""}
    assert len(names) == 1
    with engine.begin() as conn:
        [row] = rebuild_listing.list_newest(conn, limit=10)
    assert ({row.id}, row.queue) == (names, RebuildQueue.INTERACTIVE)


def test_nobody_claims_a_warm_up_while_a_turn_waits_for_another(conn: Connection) -> None:
    enqueue(conn, queue=BACKGROUND)
    enqueue(conn, "rb_2", chat=ConversationId("conv_2"), turn=NEXT)
    assert claim(conn) is None
    assert rebuilds.claim(conn, rebuild="rb_2", owner="worker-1", lease_s=60) is not None
    assert claim(conn, owner="worker-2") is not None, "the other one is worked on"


def test_what_ended_without_a_result_is_not_queued_beside_another(conn: Connection) -> None:
    enqueue(conn)
    rebuilds.supersede(conn, turn=TURN)
    enqueue(conn, "rb_2", turn=NEXT)
    with pytest.raises(VersionConflict, match="another one makes the same"):
        rebuilds.requeue(conn, "rb_1")


def test_a_finished_rebuild_says_what_came_of_it(conn: Connection) -> None:
    enqueue(conn)
    claim(conn)
    refusal = refused().refusal
    rebuilds.finish(
        conn, rebuild="rb_1", fence=1, artifact=KV, engine_boot=BootId("boot_9"), tokens=80, refusal=refusal
    )
    rebuild = found(conn)
    assert (rebuild.artifact, rebuild.engine_boot, rebuild.tokens_done) == (KV, "boot_9", 80)
    assert rebuild.refusal == refusal
    assert rebuild.started_at is not None
    assert rebuild.finished_at is not None
    assert rebuild.created_at <= rebuild.started_at <= rebuild.finished_at


def test_what_waits_or_was_left_is_stalled_and_what_is_worked_on_is_not(conn: Connection) -> None:
    enqueue(conn)
    assert rebuilds.stalled(conn, queued_for_s=60, limit=10) == []
    assert rebuilds.stalled(conn, queued_for_s=0, limit=10) == [("rb_1", RebuildQueue.INTERACTIVE)]
    claim(conn, lease_s=60)
    assert rebuilds.stalled(conn, queued_for_s=0, limit=10) == []
    rebuilds.renew(conn, rebuild="rb_1", fence=1, lease_s=0)
    assert rebuilds.stalled(conn, queued_for_s=60, limit=10) == [("rb_1", RebuildQueue.INTERACTIVE)]
    finish(conn, fence=1)
    assert rebuilds.stalled(conn, queued_for_s=0, limit=10) == []


def test_the_longest_stalled_come_first(conn: Connection) -> None:
    for number in range(1, 5):
        enqueue(conn, f"rb_{number}", chat=ConversationId(f"conv_{number}"), attempt=number)
    names = [rebuild for rebuild, _ in rebuilds.stalled(conn, queued_for_s=0, limit=3)]
    assert names == ["rb_1", "rb_2", "rb_3"]


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'running'", "ck_rebuilds_running"),
        ("state = 'done', finished_at = now()", "ck_rebuilds_done"),
        ("state = 'failed', finished_at = now()", "ck_rebuilds_failed"),
        ("state = 'superseded'", "ck_rebuilds_finished"),
        ("state = 'lost', finished_at = now()", "ck_rebuilds_state"),
        ("queue = 'fast'", "ck_rebuilds_queue"),
        ("fence = -1", "ck_rebuilds_fence"),
        ("tokens_done = -1", "ck_rebuilds_tokens"),
        ("revision = 'v13'", "ck_rebuilds_revision"),
    ],
)
def test_the_table_refuses_a_state_without_what_belongs_to_it(
    conn: Connection, change: str, constraint: str
) -> None:
    enqueue(conn)
    with pytest.raises(IntegrityError, match=constraint):
        conn.execute(text(f"UPDATE rebuilds SET {change}"))  # noqa: S608 from the list above
