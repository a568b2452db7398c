"""Rebuilds are claimed by one worker at a time, and a worker that lost its claim changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from service.domain.artifact import BootId
from service.domain.errors import FenceLost, VersionConflict
from service.domain.events import TurnId
from service.domain.plan import RebuildQueue
from service.store import rebuilds
from service.store.rebuilds import Claim, Rebuild, RebuildState
from tests.store.histories import ACME, CHAT, KV, NEW_ENGINE, TURN, V13, refused

RACERS = 8


def enqueue(conn: Connection, rebuild: str = "rb_1", *, turn: TurnId = TURN, attempt: int = 1) -> None:
    rebuilds.enqueue(
        conn,
        rebuild=rebuild,
        tenant=ACME,
        conversation=CHAT,
        turn=turn,
        attempt=attempt,
        revision=V13,
        offer=KV,
        tokens_total=96,
        queue=RebuildQueue.INTERACTIVE,
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
    with pytest.raises(FenceLost, match="fence 1"):
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
    with pytest.raises(FenceLost):
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
    enqueue(conn, "rb_3", attempt=2)
    assert (found(conn).state, found(conn).reason) == (RebuildState.FAILED, "the engine died")


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
        enqueue(conn, f"rb_{number}", attempt=number)
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
