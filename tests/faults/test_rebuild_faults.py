"""A waiting rebuild ends well, once, and in bounded time, whatever dies, hangs or forgets meanwhile."""

import os
import signal
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from service.domain.errors import Unavailable
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from stack.valkey import EmbeddedValkey
from tests.workers.brokers import client_of
from tests.workers.celery_worker import CeleryWorker, until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import Waiting, make_waiting
from workers.rebuild_runner import LEASE_S

PICKED_UP_S = LEASE_S + 5.0
"""The lease, at most one sweep and one wait of the backlog, and slack for a busy machine."""


@pytest.fixture
def begun(store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker) -> Waiting:
    """A rebuild that a worker has claimed, and that its engine holds back."""
    waiting = make_waiting(store)
    prefiller.go.clear()
    doorbell = Doorbell(broker.url())
    doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()
    assert prefiller.begun.acquire(timeout=10)
    return waiting


def claimer(waiting: Waiting) -> int:
    """Pid of the pool process that holds the claim."""
    owner = waiting.row().owner
    assert owner is not None
    return int(owner.rpartition(":")[2])


def ended_well(waiting: Waiting) -> None:
    assert waiting.row().state == "done"
    assert waiting.event_names().count("kv.rebuilt") == 1
    assert waiting.event_names().count("kv.refused") == 1


def test_q2_the_pool_process_is_killed(begun: Waiting, prefiller: PrefillEngine) -> None:
    """Case Q2."""
    os.kill(claimer(begun), signal.SIGKILL)
    prefiller.go.set()
    until(begun.ended, "the rebuild ends", PICKED_UP_S)
    ended_well(begun)
    assert begun.row().fence == 2


def test_the_whole_worker_is_killed(
    begun: Waiting, prefiller: PrefillEngine, worker: CeleryWorker, new_worker: NewWorker
) -> None:
    worker.kill_main()
    prefiller.go.set()
    new_worker().start()
    until(begun.ended, "the rebuild ends", PICKED_UP_S)
    ended_well(begun)


def test_q2_the_broker_forgets_everything(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    """Case Q2, the broker emptied."""
    waiting = make_waiting(store)
    with client_of(broker.url()) as client:
        client.flushall()
    until(waiting.ended, "the rebuild ends", PICKED_UP_S)
    ended_well(waiting)


def test_the_broker_forgets_everything_and_the_worker_dies(
    begun: Waiting, prefiller: PrefillEngine, broker: EmbeddedValkey
) -> None:
    with client_of(broker.url()) as client:
        client.flushall()
    os.kill(claimer(begun), signal.SIGKILL)
    prefiller.go.set()
    until(begun.ended, "the rebuild ends", PICKED_UP_S)
    ended_well(begun)


def test_q2_the_broker_is_away_when_it_should_ring(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    """Case Q2, the broker restarted."""
    url = broker.url()
    broker.stop()
    waiting = make_waiting(store)
    with pytest.raises(Unavailable):
        Doorbell(url).ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    until(lambda: "did not take rebuild" in worker.said(), "the sweeper tried as well", 10)
    broker.start()
    until(waiting.ended, "the rebuild ends", 30)
    ended_well(waiting)


def test_a_frozen_worker_that_wakes_up_late_changes_nothing(
    begun: Waiting, prefiller: PrefillEngine, worker: CeleryWorker, new_worker: NewWorker
) -> None:
    new_worker().start()
    worker.signal_tree(signal.SIGSTOP)
    prefiller.go.set()
    until(begun.ended, "the second worker ends the rebuild", PICKED_UP_S)
    ended_well(begun)
    before = begun.row(), begun.event_names()
    worker.signal_tree(signal.SIGCONT)
    until(lambda: "fence 1" in worker.said(), "the first worker has woken up")
    assert (replace(begun.row(), partials=()), begun.event_names()) == before
