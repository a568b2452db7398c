"""A broker that comes back as it was a while ago: what is in it was done, and what was rung since is not in it."""

from sqlalchemy import Engine

from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from stack.valkey import EmbeddedValkey
from tests.workers.brokers import client_of
from tests.workers.celery_worker import until
from tests.workers.conftest import NewWorker
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import Waiting, make_waiting

PATIENCE_S = 30.0


def ring(broker: EmbeddedValkey, waiting: Waiting) -> None:
    doorbell = Doorbell(broker.url())
    doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
    doorbell.close()


def kept_by(broker: EmbeddedValkey) -> dict[bytes, bytes]:
    """Each key with its value, as the server itself writes it into a snapshot."""
    with client_of(broker.url()) as client:
        return {key: client.dump(key) for key in client.keys("*")}


def restart_with(broker: EmbeddedValkey, kept: dict[bytes, bytes]) -> None:
    with client_of(broker.url()) as client:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)
    broker.stop()
    broker.start()


def test_a_broker_restored_from_an_old_snapshot_loses_no_rebuild_and_repeats_none(
    store: Engine, prefiller: PrefillEngine, broker: EmbeddedValkey, new_worker: NewWorker
) -> None:
    done = make_waiting(store)
    ring(broker, done)
    kept = kept_by(broker)
    assert b"interactive" in kept
    first = new_worker()
    first.start(concurrency=1)
    until(done.ended, "the rebuild ends", PATIENCE_S)
    first.kill_main()
    before = done.row(), done.event_names()
    unknown = make_waiting(store)
    ring(broker, unknown)
    restart_with(broker, kept)
    second = new_worker()
    second.start(concurrency=1)
    until(unknown.ended, "the one that the broker does not know is found by its row", PATIENCE_S)
    again = f"rebuild {done.rebuild} is not free: nothing to do"
    until(lambda: again in second.said(), "the one that is done is delivered again", PATIENCE_S)
    assert [one.row().state for one in (done, unknown)] == ["done", "done"]
    assert (done.row(), done.event_names()) == before
    assert len(prefiller.prefills) == 2
