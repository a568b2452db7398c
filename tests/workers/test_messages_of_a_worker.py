"""What a worker takes from its broker, and when: as it is configured, and as a broker sees it without any sweep."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

from sqlalchemy import Engine

from service.domain.plan import RebuildQueue
from service.queue import REBUILD_TASK, Doorbell
from stack.valkey import EmbeddedValkey
from tests.workers.brokers import client_of
from tests.workers.celery_worker import REPOSITORY, CeleryWorker, until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import make_waiting

SHOW = f"""
import json
from workers.celery_app import app
task = app.tasks["{REBUILD_TASK}"]
names = "acks_late", "reject_on_worker_lost", "ignore_result"
conf = "worker_prefetch_multiplier", "worker_soft_shutdown_timeout", "task_soft_time_limit", "task_time_limit", "result_backend"
print(json.dumps({{n: getattr(task, n) for n in names}} | {{n: app.conf[n] for n in conf}}))
"""


def test_a_message_is_done_with_when_its_rebuild_is_and_a_killed_process_gives_it_back() -> None:
    """In a process of its own: the app is made of the environment as it is imported."""
    given = {"DATABASE_URL": "postgresql://localhost/x", "REBUILD_TIMEOUT_S": "70", "SHUTDOWN_S": "20"}
    environment = os.environ | {f"EVERTURN_{name}": value for name, value in given.items()}
    told = subprocess.check_output([sys.executable, "-c", SHOW], cwd=REPOSITORY, env=environment)
    assert json.loads(told) == {
        "acks_late": True,
        "reject_on_worker_lost": True,
        "ignore_result": True,
        "worker_prefetch_multiplier": 1,
        "worker_soft_shutdown_timeout": 20,
        "task_soft_time_limit": 70,
        "task_time_limit": 100,
        "result_backend": None,
    }


def test_a_worker_takes_one_message_and_one_that_its_process_dies_on_comes_again(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, new_worker: NewWorker
) -> None:
    """Without a beat nobody sweeps: what comes again, the broker gives again."""
    worker = new_worker()
    worker.start(concurrency=1, beat=False)
    prefiller.go.clear()
    doorbell = Doorbell(broker.url())
    for waiting in [make_waiting(store) for _ in range(3)]:
        doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()
    assert prefiller.begun.acquire(timeout=20)
    with client_of(broker.url()) as client:
        until(lambda: client.hlen("unacked") == 1, "the message stays the broker's while it is worked on")
        assert client.llen(RebuildQueue.INTERACTIVE) == 2, "no other is held back by this worker"
    [busy] = worker.children()
    os.kill(busy, signal.SIGKILL)
    prefiller.go.set()
    until(lambda: max(deliveries(worker).values()) == 2, "the broker gives the message again")


def deliveries(worker: CeleryWorker) -> Counter[str]:
    return Counter(re.findall(rf"{re.escape(REBUILD_TASK)}\[(\S+)\] received", worker.said()))
