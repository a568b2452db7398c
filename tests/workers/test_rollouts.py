"""The beat of a real worker moves a rollout: warms by real tasks, and goes on after everything was killed."""

import signal
from datetime import UTC, datetime

from sqlalchemy import Engine

from service import rollout_command_flow
from service.domain.artifact import BootId
from service.domain.plan import EngineRole
from service.domain.rollout_events import Drain, Limits, RolloutId, RolloutState, Share, Strategy
from service.store import fleet, rollout_facts, rollouts
from tests.domain.descriptors import V12, V13
from tests.workers.celery_worker import until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import LONG_S, make_answered

ROLLOUT = RolloutId("ro_1")
WITHIN_S = 60.0
NO_TROUBLE = Limits(refusals=0, failed_attempts=0, failed_rebuilds=0)


def begin(store: Engine, *, warm: int, hold_s: int = 0) -> None:
    """From v12, which the alias is set back to, to v13, which the prefiller serves."""
    strategy = Strategy(
        warm=warm,
        warm_tokens_per_s=None,
        shift=(Share(percent=50, hold_s=hold_s), Share(percent=100, hold_s=0)),
        drain=Drain.UNPINNED,
        limits=NO_TROUBLE,
    )
    wanted = rollout_command_flow.Wanted(
        alias="production", source=V12.digest, target=V13.digest, strategy=strategy, reason=""
    )
    with store.begin() as conn:
        fleet.set_alias(conn, "production", V12.digest, None)
        fleet.register_engine(
            conn,
            boot=BootId("boot_old"),
            revision=V12.digest,
            address="http://127.0.0.1:9",
            role=EngineRole.BOTH,
            lease_s=LONG_S,
        )
        rollout_command_flow.start(conn, wanted, ROLLOUT, by="test", now=datetime.now(UTC))


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
