"""API, Celery worker, engines, PostgreSQL and broker as processes of their own, each of which can be killed, stopped and started again."""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError
from sqlalchemy import Engine, select

from service.domain.errors import Unavailable
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store.connection import AUDITOR_ROLE, make_engine
from service.store.tables import rebuilds
from stack.valkey import EmbeddedValkey
from tests.chaos.rig import Rig, rig
from tests.chaos.wire import Session
from tests.engines.simulated import SimulatedEngine
from tests.faults.engine_process import EngineProcess
from tests.faults.plan import Deed, Fault, Victim
from tests.workers.brokers import client_of
from tests.workers.celery_worker import CeleryWorker

RINGS = 5
OLD, NEW = "v12", "v13"
SETTINGS = {
    "EVERTURN_REBUILD_MIN_TOKENS": "8",
    "EVERTURN_REBUILD_CLAIM_S": "4",
    "EVERTURN_REBUILD_TIMEOUT_S": "15",
    "EVERTURN_ENGINE_SILENCE_S": "6",
    "EVERTURN_ENGINE_LEASE_S": "4",
    "EVERTURN_TURN_LEASE_S": "3",
}


@dataclass(slots=True)
class Fleet:
    """All processes of one machine."""

    base: Rig
    broker: EmbeddedValkey
    worker: CeleryWorker
    kv: Path
    auditor: Engine
    """Reads the audit views, past the proxy."""
    engines: dict[str, EngineProcess] = field(default_factory=dict)
    """Those that should be up, by their weights."""
    twins: dict[str, SimulatedEngine] = field(default_factory=dict)
    """Of all that ever were, by boot."""
    fault: Fault | None = None
    struck: str | None = None
    """Where the fault found its victim, once it has."""
    taken: bool = False
    counted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: list[threading.Timer] = field(default_factory=list)

    def arm(self, fault: Fault) -> None:
        with self.lock:
            self.fault, self.struck, self.counted = fault, None, 0
            self.taken = False

    def disarm(self) -> None:
        with self.lock:
            self.fault = None

    def at(self, engine: EngineProcess, step: str) -> None:
        """Of an engine that stands still until this returns."""
        with self.lock:
            fault = self.fault
            if fault is None or self.taken or fault.site.where != "engine" or fault.site.step != step:
                return
            self.counted += 1
            if self.counted < fault.site.number:
                return
            self.taken = True
            # Under the lock: who takes the fault away waits until it has happened, and mends it then.
            self.strike(fault, engine, None)
            self.struck = f"{step} of {engine.weights}"

    def strike(self, fault: Fault, engine: EngineProcess | None, session: Session | None) -> None:
        match fault.deed:
            case Deed.KILL:
                self._kill(fault.victim, engine, session)
            case Deed.STOP:
                self._stop(fault, engine)
            case Deed.EXCHANGE:
                self._exchange(engine or self.engines[NEW])
            case Deed.FORGET:
                self._forget()
            case Deed.DOUBLE:
                self._ring_for_all()
            case Deed.SLOW:
                threading.Thread(target=self._be_silent, args=(fault.for_s,), daemon=True).start()
            case Deed.CUT:
                return  # which the trap does to every connection it springs in

    def mend(self) -> None:
        """Starts what has died; what is stopped goes on by itself."""
        for timer in self.stopped:
            timer.join()
        self.stopped.clear()
        self.base.mend()
        if self.broker.child.ended():
            self.broker.stop()
            self.broker.start()
        if self.worker.process is not None and self.worker.process.poll() is not None:
            self.worker.start(concurrency=1)
        for weights, engine in list(self.engines.items()):
            if not engine.alive or engine.weights != weights:
                engine.kill()
                self.start_engine(weights)

    def start_engine(self, weights: str, *, port: int = 0) -> EngineProcess:
        engine = EngineProcess(weights, self.kv, self.at, port)
        self.engines[weights] = engine
        self.twins[engine.boot] = engine.model
        self.register(engine)
        return engine

    def register(self, engine: EngineProcess) -> None:
        body = {
            "boot": engine.boot,
            "address": engine.address,
            "role": "both",
            "descriptor": self.twins[engine.boot].descriptor.to_json(),
        }
        headers = {"authorization": f"Bearer {self.base.secrets.operator}"}
        with httpx.Client(base_url=self.base.url, headers=headers, timeout=30) as admin:
            assert admin.post("/admin/engines", json=body).status_code == 201

    def _kill(self, victim: Victim, engine: EngineProcess | None, session: Session | None) -> None:
        match victim:
            case Victim.API:
                self.base.kill_api()
            case Victim.WORKER:
                self.worker.kill_main()
            case Victim.CHILD:
                for pid in self.worker.children():
                    _signal(pid, signal.SIGKILL)
            case Victim.ENGINE:
                (engine or self.engines[NEW]).kill()
            case Victim.POSTGRES:
                self.base.kill_postgres()
            case Victim.BACKEND:
                if session is not None:
                    self.base.kill_backend(session.backend_pid)
            case Victim.BROKER:
                psutil.Process(self.broker.child.pid).kill()

    def _stop(self, fault: Fault, engine: EngineProcess | None) -> None:
        pids = self._pids(fault.victim, engine)
        for pid in pids:
            _signal(pid, signal.SIGSTOP)

        def go_on() -> None:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

        timer = threading.Timer(fault.for_s, go_on)
        timer.start()
        self.stopped.append(timer)

    def _pids(self, victim: Victim, engine: EngineProcess | None) -> list[int]:
        match victim:
            case Victim.API:
                assert self.base.api is not None
                return [self.base.api.pid]
            case Victim.WORKER:
                return [self.worker.pid, *self.worker.children()]
            case Victim.CHILD:
                return self.worker.children()
            case Victim.ENGINE:
                return [(engine or self.engines[NEW]).pid]
            case Victim.BROKER:
                return [self.broker.child.pid]
            case Victim.POSTGRES | Victim.BACKEND:
                parent = psutil.Process(self.base.server.child.pid)
                return [parent.pid, *(child.pid for child in parent.children(recursive=True))]

    def _exchange(self, engine: EngineProcess) -> None:
        """In a thread of its own: the engine's own must not wait for the one that comes after it."""
        engine.kill()
        other = OLD if engine.weights == NEW else NEW

        def come() -> None:
            stranger = EngineProcess(other, self.kv, lambda *_: None, engine.port)
            self.twins[stranger.boot] = stranger.model
            self.engines[engine.weights] = stranger

        thread = threading.Timer(0, come)
        thread.start()
        self.stopped.append(thread)

    def _ring_for_all(self) -> None:
        with self.base.database.connect() as conn:
            names = conn.execute(select(rebuilds.c.rebuild_id, rebuilds.c.queue).limit(RINGS)).all()
        bell = Doorbell(self.broker.url())
        try:
            for name, queue in [*names] * RINGS:
                bell.ring(name, RebuildQueue(queue))
        except Unavailable:
            pass  # it is being killed by another thread's fault
        finally:
            bell.close()

    def _forget(self) -> None:
        try:
            with client_of(self.broker.url()) as client:
                client.flushall()
        except (KombuError, CeleryError, OSError):
            return

    def _be_silent(self, for_s: float) -> None:
        with self.base.proxy.silence():
            time.sleep(for_s)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """`folder` must be one that a server account other than root can enter."""
    kv = folder / "kv"
    kv.mkdir(parents=True)
    with EmbeddedValkey(folder / "valkey") as broker:
        told = {"EVERTURN_BROKER_URL": broker.url(), **SETTINGS}
        with rig(folder, **told) as base:
            worker = CeleryWorker(
                database_url=base.environment["EVERTURN_DATABASE_URL"],
                broker_url=broker.url(),
                log=folder / "worker.log",
            )
            auditor = make_engine(base.server.url(), application_name="auditor", role=AUDITOR_ROLE)
            made = Fleet(base, broker, worker, kv, auditor)
            over = threading.Event()
            beating = threading.Thread(target=_heartbeats, args=(made, over), daemon=True)
            try:
                worker.start(concurrency=1)
                for weights in (OLD, NEW):
                    made.start_engine(weights)
                _point(made)
                beating.start()
                yield made
            finally:
                over.set()
                worker.close()
                auditor.dispose()
                for engine in made.engines.values():
                    engine.go_on()
                    engine.kill()


def _point(made: Fleet) -> None:
    headers = {"authorization": f"Bearer {made.base.secrets.operator}"}
    revision = made.twins[made.engines[OLD].boot].revision
    with httpx.Client(base_url=made.base.url, headers=headers, timeout=30) as admin:
        assert admin.put("/admin/aliases/production", json={"revision": revision}).status_code == 200


def _heartbeats(made: Fleet, over: threading.Event) -> None:
    """As launchers send them; an engine that is dead or stopped is silent, and its lease runs out."""
    headers = {"authorization": f"Bearer {made.base.secrets.operator}"}
    with httpx.Client(base_url=made.base.url, headers=headers, timeout=2) as admin:
        while not over.wait(1.0):
            for engine in list(made.engines.values()):
                if engine.alive and not engine.stopped:
                    try:
                        admin.post(f"/admin/engines/{engine.boot}/heartbeat")
                    except httpx.HTTPError:
                        continue


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everturn-faults-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
