"""The Celery worker: rung by the doorbell, with connections of each process's own."""

import os
import signal
import subprocess
import sys

from sqlalchemy import Engine, text

from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from stack.valkey import EmbeddedValkey
from tests.workers.celery_worker import CeleryWorker, has_ended, until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import Waiting, make_waiting, make_warming
from workers.pool_process import ORPHANED


def ring(broker: EmbeddedValkey, *waiting: Waiting) -> None:
    doorbell = Doorbell(broker.url())
    for each in waiting:
        doorbell.ring(each.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()


def connected_pids(store: Engine) -> dict[int, str]:
    """This test's worker processes by what they call themselves, counted by the server; those of others may live on."""
    with store.begin() as conn:
        rows = conn.execute(
            text(
                "SELECT pid, application_name FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'everturn-worker-%'"
            )
        )
        return {row.pid: row.application_name for row in rows}


def test_a_ring_is_answered_at_once(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    waiting = make_waiting(store)
    ring(broker, waiting)
    until(waiting.ended, "the rebuild ends", 2.5)
    assert waiting.row().state == "done"


def test_q1_five_deliveries_rebuild_once(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    """Case Q1."""
    waiting = make_waiting(store)
    prefiller.go.clear()
    ring(broker, *[waiting] * 5)
    until(lambda: worker.said().count("nothing to do") == 4, "four deliveries return while the first runs")
    prefiller.go.set()
    until(waiting.ended, "the rebuild ends")
    assert len(prefiller.prefills) == 1
    assert waiting.event_names().count("kv.rebuilt") == 1


def test_a_turns_rebuild_is_next_behind_a_chunk_of_a_warm_up_also_where_there_is_one_process(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, new_worker: NewWorker
) -> None:
    new_worker().start(concurrency=1, rebuild_chunk_tokens="16")
    warmings = [make_warming(store) for _ in range(3)]
    prefiller.go.clear()
    prefiller.held_from = 2
    doorbell = Doorbell(broker.url())
    for warming in warmings:
        doorbell.ring(warming.rebuild, RebuildQueue.BACKGROUND)
    for _ in range(2):
        assert prefiller.begun.acquire(timeout=20)
    waiting = make_waiting(store)
    doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()
    prefiller.go.set()
    until(lambda: all(each.ended() for each in (waiting, *warmings)), "all rebuilds end", 60)
    whose = [p["kv_transfer_params"]["everturn"]["attempt"].partition(".")[0] for p in prefiller.prefills]
    assert whose[:2] == [whose[0]] * 2
    assert whose[2:10] == [waiting.rebuild] * 8, "it begins behind the chunk, and is not left for another"
    assert {each.row().state for each in (waiting, *warmings)} == {"done"}
    assert prefiller.computed() == [16] * len(prefiller.prefills), "nothing was prefilled twice"


def test_q3_each_pool_process_has_connections_of_its_own(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    """Case Q3."""
    prefiller.go.clear()
    both = [make_waiting(store), make_waiting(store)]
    ring(broker, *both)
    for _ in both:
        assert prefiller.begun.acquire(timeout=10)
    names = set(connected_pids(store).values())
    assert len(names) == 2, "two processes work at once"
    assert f"everturn-worker-{worker.pid}" not in names, "the main process has none to share"
    children = {f"everturn-worker-{pid}" for pid in worker.children()}
    assert names < children
    prefiller.go.set()
    for waiting in both:
        until(waiting.ended, "the rebuild ends")


def test_sigterm_lets_a_rebuild_end(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, worker: CeleryWorker
) -> None:
    waiting = make_waiting(store)
    prefiller.go.clear()
    ring(broker, waiting)
    assert prefiller.begun.acquire(timeout=10)
    children = worker.children()
    assert worker.process is not None
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.said(), "the worker stops")
    prefiller.go.set()
    assert worker.process.wait(timeout=20) == 0
    assert waiting.row().state == "done"
    assert all(has_ended(pid) for pid in children)


def test_sigquit_leaves_a_rebuild_the_time_to_end(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, new_worker: NewWorker
) -> None:
    worker = new_worker()
    worker.start(shutdown_s="8")
    waiting = make_waiting(store)
    prefiller.go.clear()
    ring(broker, waiting)
    assert prefiller.begun.acquire(timeout=10)
    assert worker.process is not None
    worker.process.send_signal(signal.SIGQUIT)
    until(lambda: "Initiating Soft Shutdown, terminating in 8.0 seconds" in worker.said(), "it stops softly")
    prefiller.go.set()
    worker.process.wait(timeout=40)
    assert (waiting.row().state, waiting.row().fence) == ("done", 1)


def test_a_rebuild_that_takes_too_long_ends_with_a_reason_and_its_process_goes_on(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, new_worker: NewWorker
) -> None:
    new_worker().start(concurrency=1, rebuild_timeout_s="2")
    late, next_one = make_waiting(store), make_waiting(store)
    prefiller.go.clear()
    ring(broker, late)
    assert prefiller.begun.acquire(timeout=10)
    until(late.ended, "it is given up", 15)
    assert late.row().state == "failed"
    assert late.row().reason
    prefiller.go.set()
    ring(broker, next_one)
    until(next_one.ended, "the process takes the next one", 15)
    assert next_one.row().state == "done"


def test_a_killed_worker_leaves_no_process(worker: CeleryWorker) -> None:
    left = worker.kill_main()
    assert len(left) == 3, "two pool processes and beat"
    until(lambda: all(has_ended(pid) for pid in left), "they end")


def test_a_pool_process_whose_worker_was_killed_before_it_began_ends_by_itself() -> None:
    begun = "from workers.pool_process import end_with_parent; end_with_parent({}); print('goes on')"
    alone = subprocess.run([sys.executable, "-c", begun.format(2**22 + 1)], capture_output=True, check=False)
    assert (alone.returncode, alone.stdout) == (ORPHANED, b"")
    tied = subprocess.run([sys.executable, "-c", begun.format(os.getpid())], capture_output=True, check=False)
    assert (tied.returncode, tied.stdout) == (0, b"goes on\n")
