"""The real service on a real PostgreSQL with the proxy between them: what can be killed, and is started again at once."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from service import rollout_flow
from service.domain.events import TenantId
from service.rollout_flow import Secrets
from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.ports import find_free_port
from stack.postgres import PORT, EmbeddedPostgres
from stack.valkey import EmbeddedValkey
from tests.chaos.wire import WireProxy
from tests.engines.simulated import SimulatedEngine, Stored
from tests.workers.celery_worker import CeleryWorker
from workers.turn_sweep import settle_orphans

REPOSITORY = Path(__file__).parents[2]
TENANT = TenantId("acme")
API = "everturn-api"
WORKER = "everturn-worker-"
TURN_LEASE_S = 2.0
PATIENT = {"EVERTURN_TURN_LEASE_S": "5"}
"""For tests, which share their machine: a process that is kept waiting must not look like one that has died."""
START_S = 60.0
DEATH_S = 20.0
SWEEP_EVERY_S = 0.1
POLL_S = 0.01


@dataclass(slots=True)
class Process:
    """One that cannot be mistaken for another that has got its pid."""

    pid: int
    pidfd: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, os.pidfd_open(pid))

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has ended by itself

    def ended(self, within_s: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def close(self) -> None:
        os.close(self.pidfd)


@dataclass(slots=True, kw_only=True)
class Rig:
    server: EmbeddedPostgres
    proxy: WireProxy
    engines: dict[str, SimulatedEngine]
    """By their boots; the alias points at the first."""
    secrets: Secrets
    url: str
    """Of the API."""
    database: Engine
    """Past the proxy, for all tenants."""
    nursery: "subprocess.Popen[str]"
    environment: dict[str, str]
    log: Path
    api: Process | None = None
    worker: CeleryWorker | None = None
    restarts: dict[str, list[float]] = field(default_factory=lambda: {"api": [], "postgres": []})
    """Seconds that each took, death to readiness."""

    @property
    def engine(self) -> SimulatedEngine:
        return next(iter(self.engines.values()))

    def start_api(self) -> None:
        began = time.monotonic()
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps({"environment": self.environment, "log": str(self.log)}) + "\n")
        self.nursery.stdin.flush()
        self.api = Process.of(int(self.nursery.stdout.readline()))
        while not self._answers():
            assert not self.api.ended(), f"the service did not start:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < began + START_S, "the service did not start in time"
            time.sleep(POLL_S)
        self.restarts["api"].append(time.monotonic() - began)

    def stop_api(self) -> None:
        if self.api is not None:
            self.api.kill()
            assert self.api.ended(START_S)
            self.api.close()
            self.api = None

    def kill_api(self) -> None:
        """Dead when this returns."""
        assert self.api is not None
        self.api.kill()
        assert self.api.ended(DEATH_S)

    def kill_postgres(self) -> None:
        """All of its processes: a backend that outlived it would go on writing. Dead when this returns."""
        processes = self._postgres_processes()
        for process in processes:
            # A backend whose client has gone ends by itself.
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert self.server.child.ended(within_s=DEATH_S)
        psutil.wait_procs(processes[1:], timeout=DEATH_S)

    def kill_backend(self, pid: int) -> None:
        """As an out-of-memory killer does; the server then drops all sessions and recovers by itself."""
        for process in self._postgres_processes():
            if process.pid == pid:
                process.kill()

    def kill_worker(self, application: str) -> None:
        """The process of the pool that the application is named after."""
        assert self.worker is not None
        pid = int(application.removeprefix(WORKER))
        if pid in self.worker.children():
            os.kill(pid, signal.SIGKILL)

    @contextmanager
    def stopped(self, *, everything: bool) -> Iterator[None]:
        """The server's main process, or with it all that serve sessions, as SIGSTOP leaves them."""
        processes = self._postgres_processes()[: None if everything else 1]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def mend(self) -> None:
        """Starts what has died."""
        if self.server.child.ended():
            began = time.monotonic()
            self.server.stop()
            self.server.start()
            self.restarts["postgres"].append(time.monotonic() - began)
        assert self.api is not None
        if self.api.ended():
            self.stop_api()
            self.start_api()

    def _postgres_processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.server.child.pid)
        return [parent, *parent.children(recursive=True)]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def rig(folder: Path, **environment: str) -> Iterator[Rig]:
    """`folder` must be one that a server account other than root can enter."""
    with ExitStack() as exits:
        server = exits.enter_context(EmbeddedPostgres(folder / "postgres", durable=True))
        upgrade(server.url())
        socket_folder = Path(str(conninfo_to_dict(server.dsn())["host"]))
        proxy = exits.enter_context(WireProxy(socket_folder / f".s.PGSQL.{PORT}"))
        database = make_engine(server.url(), application_name="chaos-checks", pool_size=3)
        exits.callback(database.dispose)
        port = find_free_port()
        stored: dict[str, Stored] = {}
        engines = [exits.enter_context(SimulatedEngine(weights, stored)) for weights in ("a", "b")]
        made = Rig(
            server=server,
            proxy=proxy,
            engines={engine.boot: engine for engine in engines},
            secrets=_bootstrap(database),
            url=f"http://127.0.0.1:{port}",
            database=database,
            nursery=exits.enter_context(nursery_of_apis()),
            environment=_environment(proxied(server.url(), proxy.port), port) | environment,
            log=folder / "api.log",
        )
        exits.callback(made.stop_api)
        made.start_api()
        _register(made)
        exits.enter_context(_sweeping(database))
        yield made


@contextmanager
def rebuilding_rig(folder: Path, **environment: str) -> Iterator[Rig]:
    """With a real worker, whose connections go over the proxy as well, and a broker."""
    with EmbeddedValkey(folder / "valkey") as broker:
        told = {"EVERTURN_BROKER_URL": broker.url(), "EVERTURN_REBUILD_MIN_TOKENS": "8"}
        with rig(folder, **told, **environment) as made:
            worker = CeleryWorker(
                database_url=made.environment["EVERTURN_DATABASE_URL"],
                broker_url=broker.url(),
                log=folder / "worker.log",
            )
            try:
                worker.start(concurrency=1)
                made.worker = worker
                yield made
            finally:
                worker.close()


def proxied(url: str, port: int) -> str:
    plain = {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": "5"}
    through = make_url(url).set(host="127.0.0.1", port=port, query=plain)
    return through.render_as_string(hide_password=False)


def _environment(database_url: str, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "EVERTURN_DATABASE_URL": database_url,
        "EVERTURN_BROKER_URL": "redis://127.0.0.1:9/0",
        "EVERTURN_PORT": str(port),
        "EVERTURN_TURN_LEASE_S": str(TURN_LEASE_S),
        "EVERTURN_ENGINE_LEASE_S": "86400",
        "EVERTURN_POOL_SIZE": "8",
    }


def _bootstrap(database: Engine) -> Secrets:
    with database.begin() as conn:
        return rollout_flow.bootstrap(
            conn, tenant=TENANT, kept=None, new_secret=lambda: f"sk-{uuid4().hex}", now=datetime.now(UTC)
        )


def _register(made: Rig) -> None:
    headers = {"authorization": f"Bearer {made.secrets.operator}"}
    with httpx.Client(base_url=made.url, headers=headers) as admin:
        for engine in made.engines.values():
            body = {
                "boot": engine.boot,
                "address": engine.address,
                "role": "both",
                "descriptor": engine.descriptor.to_json(),
            }
            assert admin.post("/admin/engines", json=body).status_code == 201
        alias = {"revision": made.engine.revision}
        assert admin.put("/admin/aliases/production", json=alias).status_code == 200


@contextmanager
def nursery_of_apis() -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.nursery"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        yield nursery
        assert nursery.stdin is not None
        nursery.stdin.close()
        nursery.wait(START_S)


@contextmanager
def _sweeping(database: Engine) -> Iterator[None]:
    """As the workers' beat does it, only more often."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(SWEEP_EVERY_S):
            try:
                settle_orphans(database, finish=False)
            except SQLAlchemyError:
                continue  # the server is being killed; the next sweep finds what this one did not

    thread = threading.Thread(target=sweep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
