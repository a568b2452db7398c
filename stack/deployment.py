"""All of Everturn on one machine: PostgreSQL, Valkey, API, Celery worker and engines, started in order and stopped in reverse."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Self

import httpx

from service.domain.plan import RebuildQueue
from stack.errors import StackError
from stack.placement import Placement, require_links, socket_folder
from stack.ports import LOOPBACK, require_free_port
from stack.postgres import EmbeddedPostgres
from stack.process import Child
from stack.progress import Progress
from stack.valkey import EmbeddedValkey
from workers.child import Program

API_START_S = 60.0
WORKER_START_S = 60.0
ZYGOTE_START_S = 180.0
ENGINE_START_S = 300.0
ENGINE_DRAIN_S = 45.0
WORKER_STOP_S = 25.0
KV_BUDGET_GIB = "20"
ZYGOTE_SOCKET = "zygote.sock"
CHOSEN_HERE = {"EVERTURN_CANARY_REQUIRED": "true"}
"""Settings of the service that are not its defaults; the environment has the last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Made at the first start, kept in `keys.json`."""

    tenant_key: str
    operator_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    name: str
    model: Path
    port: int
    served_name: str = "chat"
    cores: str
    """Processors of the engine's threads, as vLLM takes them: `0` or `0-3`."""
    options: Sequence[str] = ()
    """Further arguments for vLLM."""


class Deployment:
    """Use as a context manager. Raises StackError with one line on what is wrong; nothing is left running then."""

    def __init__(self, data: Path, *, port: int, progress: Progress, environment: Mapping[str, str]) -> None:
        self.data = data.absolute()
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self.logs = self.data / "logs"
        self.kv = self.data / "kv"
        self.zygote = Path()
        """Its socket, once this is started: where the path of the data is too long for one, it lies elsewhere."""
        self.progress = progress
        self._environment = environment
        self._postgres = EmbeddedPostgres(self.data / "postgres")
        self._valkey = EmbeddedValkey(self.data / "valkey")
        self._children: list[Child] = []
        self._servers_run = False
        self._worker: Child | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def keys(self) -> Keys:
        document = json.loads((self.data / "keys.json").read_text())
        return Keys(tenant_key=document["tenant_key"], operator_key=document["operator_key"])

    def database_dsn(self) -> str:
        return self._postgres.dsn()

    @property
    def worker(self) -> Child:
        if self._worker is None:
            raise RuntimeError("the deployment is not started")
        return self._worker

    def restart_worker(self) -> None:
        """Ends it first, unless it has ended by itself."""
        if self._worker is not None:
            self.release(self._worker)
        argv = ["-m", "celery", "--app", "workers.celery_app", "worker", "--beat", "--concurrency", "2"]
        schedule = ["--schedule", str(self.data / "run" / "beat")]
        queues = ["--queues", ",".join(RebuildQueue), "--loglevel", "INFO"]
        alone = ["--without-mingle", "--without-gossip"]
        child = self._child("Celery worker", [*argv, *schedule, *queues, *alone], stop_s=WORKER_STOP_S)
        child.wait_ready(lambda: " ready." in child.log_tail(), timeout_s=WORKER_START_S)
        self._worker = child

    def start_engine(self, spec: EngineSpec) -> Child:
        """Returns once the engine is registered and serves; `release` ends it."""
        require_free_port(spec.port, setting=f"the port of engine {spec.name}")
        arguments = [
            *("--model", str(spec.model), "--served-model-name", spec.served_name, "--port", str(spec.port)),
            *("--api", self.url, "--key-file", str(self._engine_key_file)),
            *("--store", str(self.kv), "--run-dir", str(self.data / "run" / spec.name)),
            *("--zygote", str(self.zygote), "--cores", spec.cores, "--", *spec.options),
        ]
        child = self._child(
            f"engine {spec.name}",
            ["-m", "workers.launcher", *arguments],
            stop_s=ENGINE_DRAIN_S,
        )
        with self.progress.step(f"engine {spec.name} loads {spec.model.name}"):
            child.wait_ready(lambda: self._engine_serves(spec.port), timeout_s=ENGINE_START_S)
        return child

    def release(self, child: Child) -> int:
        self._children.remove(child)
        return child.stop()

    def first_dead(self) -> str | None:
        """A line about the first part that has ended by itself; None while all run."""
        for child in (self._postgres.child, self._valkey.child, *self._children):
            if child.ended():
                return f"{child.program.name} has ended ({child.end_of()}): {child.last_words()}"
        return None

    def admin(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """One call of the operator's API; raises StackError with the answer's own message."""
        answer = httpx.request(
            method,
            f"{self.url}/admin{path}",
            json=body,
            headers={"authorization": f"Bearer {self.keys.operator_key}"},
            timeout=30,
            trust_env=False,
        )
        if answer.is_error:
            raise StackError(f"{method} /admin{path} answered {answer.status_code}: {answer.text}")
        document: dict[str, object] = answer.json()
        return document

    def stop(self) -> None:
        while self._children:
            child = self._children.pop()
            with self.progress.step(f"{child.program.name} stops"):
                child.stop()
        self._servers_run = False
        self._valkey.stop()
        self._postgres.stop()
        self._held.close()

    def _start(self) -> None:
        require_free_port(self.port, setting="EVERTURN_PORT")
        for folder in (self.logs, self.kv, self.data / "run"):
            folder.mkdir(parents=True, exist_ok=True)
            # What people said can be read out of KV, and keys lie in run/.
            folder.chmod(0o700)
        require_links(self.kv)
        sockets = socket_folder(Placement(home=self.data / "run", account=None), ZYGOTE_SOCKET)
        self._held.callback(shutil.rmtree, sockets, ignore_errors=True)
        self.zygote = sockets / ZYGOTE_SOCKET
        self.zygote.unlink(missing_ok=True)
        zygote = self._child("engine zygote", ["-m", "workers.engine_zygote", str(self.zygote)])
        with self.progress.step("PostgreSQL starts"):
            self._postgres.start()
        with self.progress.step("Valkey starts"):
            self._valkey.start()
        self._servers_run = True
        with self.progress.step("the API migrates the database and starts"):
            api = self._child("API", ["-m", "service"])
            api.wait_ready(self._answers, timeout_s=API_START_S)
            self._bootstrap()
            self._write_operator_key()
        with self.progress.step("the Celery worker starts"):
            self.restart_worker()
        budget = self._environment.get("EVERTURN_KV_BUDGET_GIB", KV_BUDGET_GIB)
        collector = ["-m", "workers.kv_collector", "--store", str(self.kv), "--forget-erased"]
        self._child("KV collector", [*collector, "--budget-gib", budget])
        with self.progress.step("vLLM is imported, once for all engines"):
            zygote.wait_ready(self._zygote_listens, timeout_s=ZYGOTE_START_S)

    def _bootstrap(self) -> None:
        program = self._program(
            "bootstrap",
            [
                *("-m", "service", "bootstrap", "--tenant", "default"),
                *("--out", str(self.data / "keys.json"), "--engine-key", str(self._engine_key_file)),
            ],
        )
        child = Child.start(program)
        try:
            child.wait_end(timeout_s=API_START_S)
        finally:
            if child.stop() != 0:
                raise StackError(f"making the first keys failed: {child.log_tail().strip().splitlines()[-1]}")

    @property
    def _engine_key_file(self) -> Path:
        return self.data / "run" / "engine.key"

    def _write_operator_key(self) -> None:
        path = self.data / "run" / "operator.key"
        path.touch(mode=0o600)
        path.write_text(self.keys.operator_key)

    def _child(self, name: str, arguments: Sequence[str], *, stop_s: float = 15.0) -> Child:
        child = Child.start(self._program(name, arguments, stop_s=stop_s))
        self._children.append(child)
        return child

    def _program(self, name: str, arguments: Sequence[str], *, stop_s: float = 15.0) -> Program:
        return Program(
            name=name,
            argv=[sys.executable, *arguments],
            env={**CHOSEN_HERE, **self._environment, **self.settings()},
            cwd=Path(__file__).resolve().parent.parent,
            log=self.logs / f"{name.lower().replace(' ', '-')}.log",
            stop=((Signals.SIGTERM, stop_s),),
        )

    def settings(self) -> dict[str, str]:
        """As environment. PostgreSQL and Valkey know their addresses once they run; the zygote starts before that."""
        known = {"EVERTURN_PORT": str(self.port), "PYTHONUNBUFFERED": "1"}
        if self._servers_run:
            known |= {
                "EVERTURN_DATABASE_URL": self._postgres.url(),
                "EVERTURN_BROKER_URL": self._valkey.url(),
            }
        return known

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _engine_serves(self, port: int) -> bool:
        engines = self.admin("GET", "/engines")["data"]
        if not isinstance(engines, list):
            raise StackError(f"GET /admin/engines answered {engines!r}, not a list")
        return any(e["address"].endswith(f":{port}") and e["state"] == "ready" for e in engines)

    def _zygote_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(os.fsencode(self.zygote)) == 0
