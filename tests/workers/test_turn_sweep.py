"""The sweep of turns: who is gone loses them, who waits is rung for, who is late fails, and nobody is judged too soon."""

import time
from itertools import pairwise

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from service.domain.errors import Unavailable
from service.domain.events import TurnId
from service.settings import Settings
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import Waiting, make_waiting
from workers.turn_sweep import TurnSweep, settle_orphans


class Bell:
    def __init__(self, *, broken: bool = False) -> None:
        self.rung: list[str] = []
        self._broken = broken

    def ring(self, turn: TurnId) -> None:
        self.rung.append(turn)
        if self._broken:
            raise Unavailable("the broker is down")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = time.monotonic()
        monkeypatch.setattr("workers.turn_sweep.time.monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def orphan(store: Engine, prefiller: PrefillEngine) -> Waiting:
    """That its process may have a worker finish."""
    made = make_waiting(store, turn_lease_s=-1)
    execute(store, "UPDATE turns SET finish = true WHERE turn_id = :turn", turn=made.turn)
    return made


def sweeping(clock: Clock, **settings: object) -> TurnSweep:
    """The time of a lease after its start."""
    made = TurnSweep(Settings(database_url=SecretStr("postgresql://nowhere"), turn_lease_s=5, **settings))  # type: ignore[arg-type]
    clock.now_s += 6
    return made


def execute(store: Engine, statement: str, **parameters: str) -> None:
    with store.begin() as conn:
        conn.execute(text(statement), parameters)


def claimable(store: Engine, turn: str) -> bool:
    with store.begin() as conn:
        query = text("SELECT queued_at IS NOT NULL FROM turns WHERE turn_id = :turn")
        return bool(conn.execute(query, {"turn": turn}).scalar_one())


def test_an_orphan_waits_for_a_worker_and_is_rung_for(store: Engine, orphan: Waiting, clock: Clock) -> None:
    bell = Bell()
    sweeping(clock).step(store, bell.ring)
    assert bell.rung == [orphan.turn]
    assert claimable(store, orphan.turn)
    assert orphan.event_names()[-1] == "attempt.failed"
    assert orphan.row().state == "superseded"


def test_an_orphan_fails_where_none_is_finished_even_without_a_broker(
    store: Engine, orphan: Waiting, clock: Clock
) -> None:
    alive = make_waiting(store)
    bell = Bell(broken=True)
    sweeping(clock, on_orphan="fail").step(store, bell.ring)
    assert orphan.event_names()[-2:] == ["attempt.failed", "turn.failed"]
    assert orphan.state().open_turn is None
    assert alive.state().open_turn is not None
    assert bell.rung == []


def test_nobody_is_judged_before_who_lives_could_have_renewed(
    store: Engine, orphan: Waiting, clock: Clock
) -> None:
    bell = Bell()
    sweep = TurnSweep(Settings(database_url=SecretStr("postgresql://nowhere"), turn_lease_s=5))
    sweep.step(store, bell.ring)
    assert orphan.state().open_turn is not None
    assert bell.rung == []
    clock.now_s += 6
    sweep.interrupted()
    sweep.step(store, bell.ring)
    assert bell.rung == []
    clock.now_s += 6
    sweep.step(store, bell.ring)
    assert bell.rung == [orphan.turn]


def test_what_no_worker_took_is_rung_for_again_less_and_less_often(
    store: Engine, orphan: Waiting, clock: Clock
) -> None:
    sweep, bell = sweeping(clock), Bell(broken=True)
    sweep.step(store, bell.ring)
    execute(store, "UPDATE turns SET queued_at = queued_at - interval '1 min' WHERE queued_at IS NOT NULL")
    times = []
    for _ in range(60):
        before = len(bell.rung)
        sweep.step(store, bell.ring)
        if len(bell.rung) > before:
            times.append(clock.now_s)
        clock.now_s += 1
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:4] == [2, 4, 8, 16]


def test_what_waits_beyond_its_deadline_fails_though_there_is_no_worker(
    store: Engine, orphan: Waiting, clock: Clock
) -> None:
    bell = Bell(broken=True)
    sweep = sweeping(clock)
    sweep.step(store, bell.ring)
    execute(store, "UPDATE turns SET deadline_at = clock_timestamp() WHERE turn_id = :turn", turn=orphan.turn)
    sweep.step(store, bell.ring)
    assert orphan.event_names()[-1] == "turn.failed"
    assert not claimable(store, orphan.turn)


def test_an_orphan_that_cannot_be_settled_keeps_no_other_waiting(
    store: Engine, orphan: Waiting, clock: Clock, owner_engine: Engine
) -> None:
    other = make_waiting(store, turn_lease_s=-2)
    refuse = (
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.stream = '{other.conversation}' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
    )
    execute(owner_engine, refuse)
    execute(
        owner_engine,
        "CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION public.refuse()",
    )
    assert settle_orphans(store, finish=True) == [orphan.turn]
    assert other.state().open_turn is not None


def test_chunks_that_were_left_behind_are_forgotten(
    store: Engine, prefiller: PrefillEngine, clock: Clock
) -> None:
    ended = make_waiting(store)
    execute(
        store,
        "INSERT INTO turn_chunks (turn_id, tenant_id, number, claim, attempt, revision, pieces, content) "
        "SELECT turn_id, tenant_id, 0, 0, 1, :revision, '', '' FROM turns WHERE turn_id = :turn",
        turn=ended.turn,
        revision="rev_" + "0" * 64,
    )
    ring = Bell().ring
    sweeping(clock).step(store, ring)
    assert chunks(store) == 1
    execute(store, "UPDATE turns SET closed = true, owner = NULL, lease_expires_at = NULL")
    clock.now_s += 61
    sweeping(clock).step(store, ring)
    assert chunks(store) == 0


def chunks(store: Engine) -> int:
    with store.begin() as conn:
        return int(conn.execute(text("SELECT count(*) FROM turn_chunks")).scalar_one())
