"""Turns that wait for a worker: claimed by one, and held to a lease and a deadline by the database's clock."""

import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.events import TurnId
from service.store import turn_queue, turns
from service.store.turn_queue import Claimed
from service.store.turns import Run
from tests.store.histories import ACME, TURN
from tests.store.test_turn_chunks import open_turn

BACKGROUND = Run(background=True, streamed=True, finish=True)


def claim(conn: Connection, owner: str = "worker") -> Claimed | None:
    return turn_queue.claim(conn, turn=TURN, owner=owner, lease_s=60)


def expire(conn: Connection) -> None:
    conn.execute(text("UPDATE turns SET lease_expires_at = clock_timestamp() - interval '1 s'"))


def test_one_in_the_background_waits_and_is_claimed_once(conn: Connection) -> None:
    open_turn(conn, run=BACKGROUND)
    assert turn_queue.waiting(conn, for_s=0, limit=9) == [TURN]
    claimed = claim(conn)
    assert claimed is not None
    assert (claimed.turn, claimed.claim, claimed.background, claimed.streamed) == (TURN, 1, True, True)
    assert claimed.left_s is None
    assert claim(conn, "another") is None
    assert turn_queue.waiting(conn, for_s=0, limit=9) == []


def test_one_that_its_process_runs_waits_for_nobody(conn: Connection) -> None:
    open_turn(conn)
    assert claim(conn) is None
    expire(conn)
    assert claim(conn) is None, "the sweeper ends its attempt first"


def test_one_that_waits_is_nobodys_orphan(conn: Connection) -> None:
    open_turn(conn, run=BACKGROUND)
    assert turns.orphaned(conn, 9) == []


def test_one_that_has_ended_is_claimed_by_nobody(conn: Connection) -> None:
    open_turn(conn, run=BACKGROUND)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    assert claim(conn) is None
    assert turn_queue.waiting(conn, for_s=0, limit=9) == []


def test_of_two_who_claim_at_once_one_gets_it_and_the_other_does_not_wait(engine: Engine) -> None:
    with engine.begin() as conn:
        open_turn(conn, run=BACKGROUND)
    with engine.begin() as first, engine.begin() as second:
        assert claim(first) is not None
        assert claim(second, "another") is None


def test_an_orphan_that_is_queued_is_lost_to_its_owner_and_counted(conn: Connection) -> None:
    open_turn(conn, run=Run(finish=True))
    assert turn_queue.hold(conn, tenant=ACME, turn=TURN) is None
    expire(conn)
    orphan = turn_queue.hold(conn, tenant=ACME, turn=TURN)
    assert orphan is not None
    assert (orphan.background, orphan.finish, orphan.claims, orphan.late) == (False, True, 0, False)
    turn_queue.queue(conn, tenant=ACME, turn=TURN)
    assert turn_queue.renew(conn, [TURN], owner="api", lease_s=60) == set()
    assert turn_queue.recovered(conn) == 1
    claimed = claim(conn)
    assert claimed is not None
    assert not claimed.background


def test_a_stopping_owner_holds_its_own_alone(conn: Connection) -> None:
    open_turn(conn)
    assert turn_queue.hold(conn, tenant=ACME, turn=TURN, owner="another") is None
    assert turn_queue.hold(conn, tenant=ACME, turn=TURN, owner="api") is not None


def test_an_owner_renews_all_of_its_own_at_once(conn: Connection) -> None:
    open_turn(conn)
    expire(conn)
    other = TurnId("resp_other")
    assert turn_queue.renew(conn, [TURN, other], owner="api", lease_s=60) == {TURN}
    assert turns.orphaned(conn, 9) == []
    assert turn_queue.renew(conn, [TURN], owner="another", lease_s=60) == set()


@pytest.mark.parametrize(("deadline_s", "late"), [(60.0, False), (0.0, True), (None, False)])
def test_a_deadline_passes_by_the_database_clock(
    conn: Connection, deadline_s: float | None, late: bool
) -> None:
    run = Run(background=True, deadline_s=deadline_s)
    open_turn(conn, run=run)
    assert [one.turn for one in turn_queue.overdue(conn, 9)] == ([TURN] if late else [])
    claimed = claim(conn)
    assert claimed is not None
    assert (claimed.left_s is None) == (deadline_s is None)
    assert deadline_s is None or claimed.left_s is None or deadline_s - 30 < claimed.left_s <= deadline_s
    assert turn_queue.overdue(conn, 9) == [], "whoever runs it sees to it"
    expire(conn)
    orphan = turn_queue.hold(conn, tenant=ACME, turn=TURN)
    assert orphan is not None
    assert orphan.late is late


def test_the_queue_is_counted_by_kind_and_state(conn: Connection) -> None:
    open_turn(conn, run=BACKGROUND)
    [(labels, (depth, oldest_s))] = turn_queue.depths(conn).items()
    assert (labels, depth) == (("background", "queued"), 1)
    assert 0 <= oldest_s < 60
    claim(conn)
    assert [*turn_queue.depths(conn)] == [("background", "running")]
