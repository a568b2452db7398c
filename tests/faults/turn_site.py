"""A service in several processes that can be killed: APIs and a Celery worker of their own, around one that reads."""

import json
import os
import signal
import subprocess  # noqa: TC003 the dataclass asks for it
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr
from sqlalchemy import text

from service.domain.events import TurnId
from service.queue import Doorbell
from stack.ports import find_free_port
from stack.valkey import EmbeddedValkey
from tests.api.stack import Stack, running_stack
from tests.chaos.rig import Process, nursery_of_apis
from tests.workers.celery_worker import CeleryWorker, until

LEASE_S = 2.0
START_S = 60.0
DEATH_S = 20.0
RECOVERED_S = 40.0
"""The lease, a sweep, and all the slack that a busy machine may need."""


@dataclass(slots=True, kw_only=True)
class Api:
    url: str
    process: Process

    def kill(self) -> None:
        """Dead when this returns; may be called again."""
        self.process.kill()
        assert self.process.ended(DEATH_S)

    def signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self.process.pidfd, number)


@dataclass(slots=True, kw_only=True)
class Site:
    stack: Stack
    """Its API runs in the test's own process, and is never killed."""
    broker: EmbeddedValkey
    worker: CeleryWorker
    nursery: "subprocess.Popen[str]"
    log: Path
    database: str

    def start_worker(self) -> None:
        if self.worker.process is None or self.worker.process.poll() is not None:
            self.worker.start(turn_lease_s=str(LEASE_S))

    def start_api(self, exits: ExitStack, **settings: str) -> Api:
        port = find_free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "EVERTURN_DATABASE_URL": self.database,
            "EVERTURN_BROKER_URL": self.broker.url(),
            "EVERTURN_PORT": str(port),
            "EVERTURN_TURN_LEASE_S": str(LEASE_S),
            "EVERTURN_REBUILD_MIN_TOKENS": "8",
        }
        environment |= {f"EVERTURN_{name.upper()}": value for name, value in settings.items()}
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps({"environment": environment, "log": str(self.log)}) + "\n")
        self.nursery.stdin.flush()
        process = Process.of(int(self.nursery.stdout.readline()))
        api = Api(url=f"http://127.0.0.1:{port}", process=process)
        exits.callback(process.close)
        exits.callback(api.kill)
        until(lambda: _answers(api.url), "the API answers", START_S)
        return api

    def stored_text(self, turn: str) -> str:
        """Of what the turn has said so far, as other processes see it."""
        query = text("SELECT content FROM turn_chunks WHERE turn_id = :turn ORDER BY number")
        with self.stack.database.begin() as conn:
            return b"".join(conn.execute(query, {"turn": turn}).scalars()).decode()

    def status(self, turn: str) -> str:
        return str(self.stack.http.get(f"/v1/responses/{turn}").json()["status"])

    def until_status(self, turn: str, status: str) -> float:
        """Returns the seconds that it took."""
        began = time.monotonic()
        until(lambda: self.status(turn) == status, f"turn {turn} is {status}", RECOVERED_S)
        return time.monotonic() - began


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False


@contextmanager
def running_site(database: str, broker: EmbeddedValkey, folder: Path) -> Iterator[Site]:
    worker = CeleryWorker(database_url=database, broker_url=broker.url(), log=folder / "worker.log")
    doorbell = Doorbell(broker.url())
    settings = {"broker_url": SecretStr(broker.url()), "turn_lease_s": LEASE_S, "engine_lease_s": 30}
    with running_stack(database, **settings) as stack, nursery_of_apis() as nursery:
        stack.turn_bell.work = lambda turn: doorbell.ring_turn(TurnId(turn))
        site = Site(
            stack=stack,
            broker=broker,
            worker=worker,
            nursery=nursery,
            log=folder / "api.log",
            database=database,
        )
        try:
            yield site
        finally:
            worker.close()
            doorbell.close()
