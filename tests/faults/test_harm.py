"""That what is done to victims harms them: a disk that stalls, a broker that comes back old, a store that is slow or wiped."""

import threading
import time
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from service.domain.artifact import BootId
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey
from tests.engines.simulated import Stored, descriptor
from tests.faults.engine_process import WIPED, KvFolder
from tests.faults.harm import DRAGGED, STALLED, put_in_place, reset_server, set_server
from tests.faults.rig import scratch
from tests.workers.brokers import client_of
from tests.workers.celery_worker import until

STORED = Stored(
    descriptor=descriptor("v12"),
    producer=BootId("boot_1"),
    tenant="acme",
    tokens=(1, 2),
    states=(b"a", b"b"),
    attempt="resp_1.1",
)
QUEUE = RebuildQueue.INTERACTIVE


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with scratch() as made:
        yield made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder / "postgres", durable=True) as made:
        yield made


def done(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(statement.encode())


def is_seen(server: EmbeddedPostgres, table: str) -> bool:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        row = conn.execute("SELECT to_regclass(%s)", [table]).fetchone()
    return row is not None and row[0] is not None


def test_what_is_committed_to_a_stalled_disk_is_told_to_nobody_and_seen_by_nobody_until_it_goes_on(
    server: EmbeddedPostgres,
) -> None:
    set_server(server, STALLED)
    committing = threading.Thread(target=done, args=(server, "CREATE TABLE stalled (n int)"), daemon=True)
    committing.start()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def waits() -> bool:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            row = conn.execute(waiting.encode()).fetchone()
        return row == (1,)

    until(waits, "the COMMIT waits")
    assert not is_seen(server, "stalled")
    assert committing.is_alive()
    reset_server(server, STALLED)
    until(lambda: not committing.is_alive(), "the COMMIT is told")
    assert is_seen(server, "stalled")


def test_a_disk_that_drags_takes_its_time_for_each_commit(server: EmbeddedPostgres) -> None:
    set_server(server, DRAGGED)
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        began = time.monotonic()
        for number in range(3):
            conn.execute(f"CREATE TABLE dragged{number} (n int)".encode())
        took_s = time.monotonic() - began
    reset_server(server, DRAGGED)
    assert took_s > 3 * 0.1


def test_a_broker_that_is_restored_has_what_its_copy_had_and_nothing_since(folder: Path) -> None:
    with EmbeddedValkey(folder / "broker") as broker, EmbeddedValkey(folder / "copied") as copied:
        ring(broker, "new")
        ring(copied, "old")
        copied.stop()
        psutil.Process(broker.child.pid).kill()
        assert broker.child.ended(within_s=20)
        put_in_place(copied.directory / "data", broker.directory / "data")
        broker.stop()
        broker.start()
        with client_of(broker.url()) as client:
            (message,) = client.lrange(QUEUE.value, 0, -1)
    assert b'"argsrepr": "[\'old\']"' in message


def ring(broker: EmbeddedValkey, rebuild: str) -> None:
    bell = Doorbell(broker.url())
    bell.ring(rebuild, QUEUE)
    bell.close()


def test_a_store_that_is_wiped_has_nothing_and_it_is_known_what_it_had(tmp_path: Path) -> None:
    store = KvFolder(tmp_path)
    store["kv_1"] = STORED
    store.wipe()
    assert "kv_1" not in store
    assert len(store) == 0
    store["kv_2"] = STORED
    assert ChainMap(store, KvFolder(tmp_path / WIPED))["kv_1"] == STORED
    store.wipe()
    assert set(KvFolder(tmp_path / WIPED)) == {"kv_1", "kv_2"}


def test_a_store_is_slow_for_whoever_uses_it_until_it_is_not(tmp_path: Path) -> None:
    store = KvFolder(tmp_path)
    store["kv_1"] = STORED
    store.slow_down(0.3)
    began = time.monotonic()
    assert KvFolder(tmp_path)["kv_1"] == STORED
    assert time.monotonic() - began >= 0.3
    store.speed_up()
    assert set(store) == {"kv_1"}
