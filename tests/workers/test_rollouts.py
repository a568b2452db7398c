"""The beat of a real worker moves a rollout: warms by real tasks, and goes on after everything was killed."""

import signal

from sqlalchemy import Engine

from service.domain.rollout_events import RolloutState
from service.store import fleet, rollout_facts, rollouts
from tests.domain.descriptors import V13
from tests.workers.celery_worker import until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.rolling import ROLLOUT, begin
from tests.workers.waiting import make_answered

WITHIN_S = 60.0


def state(store: Engine) -> RolloutState:
    with store.begin() as conn:
        return rollouts.find(conn, ROLLOUT).rollout.state


def warmth(store: Engine) -> rollout_facts.Warmth:
    with store.begin() as conn:
        return rollout_facts.warmth(conn, ROLLOUT)


def test_a_rollout_needs_nobody_once_it_is_started(
    store: Engine, prefiller: PrefillEngine, new_worker: NewWorker
) -> None:
    for _ in range(3):
        make_answered(store)
    begin(store, warm=10)
    new_worker().start()
    until(lambda: state(store) is RolloutState.DONE, "the rollout is done", WITHIN_S)
    found = warmth(store)
    assert (found.total, found.done, found.failed) == (3, 3, 0)
    assert len(prefiller.prefills) == 3
    with store.begin() as conn:
        assert [alias.revision for alias in fleet.list_aliases(conn)] == [V13.digest]
        engines = {engine.boot: engine.state for engine in fleet.list_engines(conn)}
    assert engines == {"boot_old": "draining", prefiller.boot: "ready"}


def test_workers_killed_while_it_warms_are_followed_by_others(
    store: Engine, prefiller: PrefillEngine, new_worker: NewWorker
) -> None:
    for _ in range(2):
        make_answered(store)
    begin(store, warm=10)
    prefiller.go.clear()
    first = new_worker()
    first.start()
    assert prefiller.begun.acquire(timeout=WITHIN_S)
    first.signal_tree(signal.SIGKILL)
    prefiller.go.set()
    assert state(store) is RolloutState.WARMING
    new_worker().start()
    until(lambda: state(store) is RolloutState.DONE, "the rollout is done", WITHIN_S)
    assert warmth(store).done == 2


def test_two_beats_move_it_once(store: Engine, prefiller: PrefillEngine, new_worker: NewWorker) -> None:
    begin(store, warm=0, hold_s=4)
    for _ in range(2):
        new_worker().start()
    until(lambda: state(store) is RolloutState.DONE, "the rollout is done", WITHIN_S)
    with store.begin() as conn:
        told = [one["type"] for one in rollouts.history(conn, ROLLOUT)]
    assert told == ["rollout.started", *["rollout.stepped"] * 3, "rollout.done"]
