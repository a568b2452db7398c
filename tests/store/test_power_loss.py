"""Postgres is killed while writers append: what was acknowledged is there, once, and every chain verifies."""

import os
import signal
import threading
from pathlib import Path
from time import sleep

import psutil
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.store import event_store
from service.store.connection import make_engine
from service.store.integrity import Walked, verify
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from tests.store.histories import ACME, NOW, said

KILLS = 4
WRITERS = 4
BETWEEN_KILLS_S = 0.25


def postgres_processes(server: EmbeddedPostgres) -> list[psutil.Process]:
    """The server and all that it forked: a child that outlived it would go on writing."""
    pid = int((server.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def write(url: str, stream: str, acknowledged: list[int], over: threading.Event) -> None:
    engine = make_engine(url, application_name=f"writer-{stream}", pool_size=1)
    version = 0
    while not over.is_set():
        try:
            with engine.begin() as conn:
                text_ = f"{stream} {version}"
                written = event_store.append(
                    conn, tenant=ACME, stream=stream, expected_version=version, events=[said(text_)], now=NOW
                )
        except DBAPIError:
            return
        version = written
        acknowledged.append(version)
    engine.dispose()


def test_what_was_acknowledged_survives_every_kill_of_the_server(server_folder: Path) -> None:
    home = server_folder / "killed"
    acknowledged: dict[str, list[int]] = {}
    for kill in range(KILLS):
        with EmbeddedPostgres(home, durable=True) as server:
            if kill == 0:
                upgrade(server.url())
            check(server.url(), acknowledged)
            over = threading.Event()
            writers = []
            for number in range(WRITERS):
                stream = f"conv_{kill}_{number}"
                acknowledged[stream] = []
                arguments = (server.url(), stream, acknowledged[stream], over)
                writers.append(threading.Thread(target=write, args=arguments))
            for writer in writers:
                writer.start()
            sleep(BETWEEN_KILLS_S)
            for process in postgres_processes(server):
                os.kill(process.pid, signal.SIGKILL)
            over.set()
            for writer in writers:
                writer.join()
    with EmbeddedPostgres(home, durable=True) as server:
        check(server.url(), acknowledged)
    assert sum(map(len, acknowledged.values())) > KILLS


def check(url: str, acknowledged: dict[str, list[int]]) -> None:
    engine = make_engine(url, application_name="checker")
    with engine.connect() as conn:
        assert list(verify(conn, Walked())) == []
        rows = conn.execute(text("SELECT stream, max(stream_version) FROM events GROUP BY stream"))
        heads: dict[str, int] = {stream: version for stream, version in rows}  # noqa: C416 rows are no pairs to mypy
    engine.dispose()
    for stream, versions in acknowledged.items():
        # One more may be there: committed, and killed before it was acknowledged.
        assert heads.get(stream, 0) in (len(versions), len(versions) + 1)
