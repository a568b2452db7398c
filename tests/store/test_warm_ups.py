"""A warm-up's rebuild is found as long as it goes on, and is called off only where no worker holds it."""

import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.plan import RebuildQueue, WarmUp
from service.store import rebuild_progress, rebuilds, warm_ups
from service.store.rebuilds import RebuildState
from service.store.warm_ups import Found
from tests.store.histories import ACME, CHAT, KV, NEW_ENGINE, V12, V13
from tests.store.test_rebuilds import BACKGROUND, claim, enqueue, found, join


def look(conn: Connection) -> Found | None:
    return warm_ups.find(conn, ACME, CHAT, V13)


def let_lapse(conn: Connection) -> None:
    conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))


def test_it_says_how_far_it_is_and_whether_a_worker_holds_it(conn: Connection) -> None:
    assert look(conn) is None
    enqueue(conn, queue=BACKGROUND)
    nothing = WarmUp(tokens_total=96, tokens_done=0)
    assert look(conn) == Found(rebuild="rb_1", held=False, warm_up=nothing)
    held = claim(conn)
    assert held is not None
    assert look(conn) == Found(rebuild="rb_1", held=True, warm_up=nothing)
    rebuild_progress.move(conn, held, artifact=KV, engine_boot=NEW_ENGINE, tokens=64, refusal=None)
    further = WarmUp(tokens_total=96, tokens_done=64)
    assert look(conn) == Found(rebuild="rb_1", held=True, warm_up=further)
    let_lapse(conn)
    assert look(conn) == Found(rebuild="rb_1", held=False, warm_up=further)


def test_one_of_another_revision_or_that_a_turn_waits_for_or_that_has_ended_is_none(conn: Connection) -> None:
    enqueue(conn, queue=BACKGROUND)
    assert warm_ups.find(conn, ACME, CHAT, V12) is None
    join(conn)
    assert look(conn) is None
    assert rebuilds.end_by_hand(conn, "rb_1", RebuildState.FAILED, "no more")
    enqueue(conn, "rb_2", queue=RebuildQueue.BACKGROUND)
    assert look(conn) is not None
    assert rebuilds.end_by_hand(conn, "rb_2", RebuildState.SUPERSEDED, "no more")
    assert look(conn) is None


@pytest.mark.parametrize(
    ("held", "lapsed", "state"), [(0, 0, "superseded"), (1, 0, "running"), (1, 1, "superseded")]
)
def test_it_is_called_off_unless_a_worker_holds_it(
    conn: Connection, held: bool, lapsed: bool, state: str
) -> None:
    enqueue(conn, queue=BACKGROUND)
    if held:
        claim(conn)
    if lapsed:
        let_lapse(conn)
    warm_ups.call_off(conn, "rb_1", "not needed")
    row = found(conn)
    assert (row.state, row.reason) == (state, "not needed" if state == "superseded" else None)


def test_what_a_turn_has_looked_at_is_claimed_by_nobody_before_it_has_decided(engine: Engine) -> None:
    with engine.begin() as conn:
        enqueue(conn, queue=BACKGROUND)
    with engine.begin() as planning:
        assert look(planning) is not None
        with engine.begin() as working:
            assert claim(working) is None
        warm_ups.call_off(planning, "rb_1", "not needed")
    with engine.begin() as working:
        assert claim(working) is None


def test_it_is_found_by_the_index_of_those_that_go_on(conn: Connection) -> None:
    conn.execute(text("SET LOCAL enable_seqscan = off"))
    compiled = warm_ups.FIND.compile(conn.engine)
    given = {**compiled.params, "tenant": ACME, "conversation": CHAT, "revision": V13}
    plan = "\n".join(conn.exec_driver_sql(f"EXPLAIN {compiled}", given).scalars())
    assert "uq_rebuilds_shared" in plan
