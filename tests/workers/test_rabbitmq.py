"""The worker on RabbitMQ: quorum queues, one rebuild for five deliveries, and what a killed worker leaves is picked up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from tests.workers.celery_worker import CeleryWorker, until
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.rabbitmq import SCRIPTS, RabbitMQ, is_installed
from tests.workers.waiting import Waiting, make_waiting

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.skipif(
        not is_installed(), reason=f"no RabbitMQ in {SCRIPTS}: apt-get install rabbitmq-server"
    ),
]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def rabbit(server_folder: Path) -> Iterator[RabbitMQ]:
    with RabbitMQ(server_folder / "rabbitmq") as server:
        yield server


@pytest.fixture
def workers(database: str, rabbit: RabbitMQ, tmp_path: Path) -> Iterator[list[CeleryWorker]]:
    """Two that run."""
    made = [
        CeleryWorker(database_url=database, broker_url=rabbit.url, log=tmp_path / f"worker{number}.log")
        for number in range(2)
    ]
    for worker in made:
        worker.start(concurrency=1)
    yield made
    for worker in made:
        worker.close()


def ring(rabbit: RabbitMQ, waiting: Waiting, times: int = 1) -> None:
    doorbell = Doorbell(rabbit.url)
    for _ in range(times):
        doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()


def test_both_queues_are_quorum_queues(rabbit: RabbitMQ, workers: list[CeleryWorker]) -> None:
    types = rabbit.queues()
    assert {types[queue] for queue in RebuildQueue} == {"quorum"}


def test_q1_five_deliveries_rebuild_once(
    store: Engine, prefiller: PrefillEngine, rabbit: RabbitMQ, workers: list[CeleryWorker]
) -> None:
    """Case Q1, on RabbitMQ."""
    waiting = make_waiting(store)
    prefiller.go.clear()
    ring(rabbit, waiting, times=5)
    refused = "nothing to do"
    until(
        lambda: sum(worker.said().count(refused) for worker in workers) == 4,
        "four deliveries return while the first runs",
        PATIENCE_S,
    )
    prefiller.go.set()
    until(waiting.ended, "the rebuild ends", PATIENCE_S)
    assert (waiting.row().state, len(prefiller.prefills)) == ("done", 1)


def test_what_a_killed_worker_had_begun_another_ends(
    store: Engine, prefiller: PrefillEngine, rabbit: RabbitMQ, workers: list[CeleryWorker]
) -> None:
    waiting = make_waiting(store)
    prefiller.go.clear()
    ring(rabbit, waiting)
    assert prefiller.begun.acquire(timeout=PATIENCE_S)
    owner = int((waiting.row().owner or "").rpartition(":")[2])
    [killed] = [worker for worker in workers if owner in worker.children()]
    killed.kill_main()
    prefiller.go.set()
    until(waiting.ended, "the rebuild ends", PATIENCE_S)
    assert (waiting.row().state, waiting.row().fence) == ("done", 2)
    assert waiting.event_names().count("kv.rebuilt") == 1
