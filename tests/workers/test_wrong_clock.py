"""A worker whose clock is wrong beside one whose clock is right: it takes nothing from it, and does its own work."""

import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store import rollouts
from service.store.rollouts import Standing
from stack.valkey import EmbeddedValkey
from tests.workers.celery_worker import until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.rolling import ROLLOUT, begin
from tests.workers.waiting import Waiting, make_waiting

BEHIND_S, AHEAD_S = -3600, 90_000
PATIENCE_S = 30.0
AMISS = '''
"""Imported by Python before anything else: wall clocks that are amiss, and those that measure durations as they are."""

import datetime as module
import os
import time

AMISS_S = float(os.environ["CLOCK_AMISS_S"])
right, seconds, nanoseconds = module.datetime, time.time, time.time_ns


class Kind(type):
    def __instancecheck__(cls, value):
        return isinstance(value, right)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, right)


class datetime(right, metaclass=Kind):
    @classmethod
    def now(cls, tz=None):
        return right.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return right.utcfromtimestamp(time.time())


datetime.__module__ = "datetime"
module.datetime = datetime
time.time = lambda: seconds() + AMISS_S
time.time_ns = lambda: nanoseconds() + int(AMISS_S * 1e9)
'''


def ring(broker: EmbeddedValkey, waiting: Waiting) -> None:
    doorbell = Doorbell(broker.url())
    doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()


def set_amiss(monkeypatch: pytest.MonkeyPatch, where: Path, amiss_s: int) -> None:
    """Of every process that is started from now on."""
    (where / "sitecustomize.py").write_text(AMISS)
    monkeypatch.setenv("CLOCK_AMISS_S", str(amiss_s))
    monkeypatch.setenv("PYTHONPATH", f"{where}:{os.environ.get('PYTHONPATH', '')}")


def hours_amiss(store: Engine, waiting: Waiting) -> float:
    """Of whoever recorded its KV, by the database's clock."""
    query = text(
        "SELECT extract(epoch FROM occurred_at - clock_timestamp()) / 3600 FROM events"
        " WHERE stream = :stream AND type = 'kv.rebuilt'"
    )
    with store.begin() as conn:
        return float(conn.execute(query, {"stream": waiting.conversation}).scalar_one())


@pytest.mark.parametrize("amiss_s", [BEHIND_S, AHEAD_S])
def test_a_worker_whose_clock_is_wrong_leaves_anothers_rebuild_alone_and_does_its_own(
    store: Engine,
    prefiller: PrefillEngine,
    broker: EmbeddedValkey,
    new_worker: NewWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    amiss_s: int,
) -> None:
    prefiller.go.clear()
    new_worker().start(concurrency=1)
    held = make_waiting(store)
    ring(broker, held)
    assert prefiller.begun.acquire(timeout=PATIENCE_S)
    set_amiss(monkeypatch, tmp_path, amiss_s)
    new_worker().start(concurrency=1)
    its_own = make_waiting(store)
    ring(broker, its_own)
    assert prefiller.begun.acquire(timeout=PATIENCE_S)
    prefiller.go.set()
    until(lambda: held.ended() and its_own.ended(), "both end", PATIENCE_S)
    rows = [one.row() for one in (held, its_own)]
    assert [(row.state, row.fence) for row in rows] == [("done", 1)] * 2
    assert len(prefiller.prefills) == 2
    assert round(hours_amiss(store, its_own)) == round(amiss_s / 3600)
    assert round(hours_amiss(store, held)) == 0


def test_a_hold_is_as_long_by_a_beat_whose_clock_is_ahead(
    store: Engine,
    prefiller: PrefillEngine,
    new_worker: NewWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def standing() -> Standing:
        with store.begin() as conn:
            return rollouts.find(conn, ROLLOUT)

    begin(store, warm=0, hold_s=3600)
    first = new_worker()
    first.start(concurrency=1)
    until(lambda: "is held for another" in (standing().waiting or ""), "the share is held", PATIENCE_S)
    first.signal_tree(signal.SIGKILL)
    told = standing()
    set_amiss(monkeypatch, tmp_path, AHEAD_S)
    new_worker().start(concurrency=1)
    until(lambda: standing() != told, "the other has come by", PATIENCE_S)
    assert standing().rollout == told.rollout
    assert "is held for another 35" in (standing().waiting or "")
