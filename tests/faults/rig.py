"""API, Celery worker, engines, PostgreSQL and broker as processes of their own, each of which can be killed, stopped and started again."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from sqlalchemy import Engine

from service.domain.plan import EngineRole
from service.store.connection import AUDITOR_ROLE, make_engine
from stack.valkey import EmbeddedValkey
from tests.chaos.rig import Rig, proxied, rig
from tests.chaos.wire import Session
from tests.engines.simulated import SimulatedEngine
from tests.faults.engine_process import ANSWERS_NEW, ANSWERS_OLD, POSTS, EngineProcess, Post
from tests.faults.harm import make_old_copy, strike
from tests.faults.plan import Deed, Fault, Kind, Victim
from tests.faults.road import Road
from tests.workers.celery_worker import CeleryWorker

SPLIT_MIN_TOKENS = 120
SETTINGS = {
    "EVERTURN_REBUILD_MIN_TOKENS": "8",
    "EVERTURN_REBUILD_CLAIM_S": "4",
    "EVERTURN_REBUILD_TIMEOUT_S": "15",
    "EVERTURN_ENGINE_SILENCE_S": "6",
    "EVERTURN_ENGINE_LEASE_S": "4",
    "EVERTURN_TURN_LEASE_S": "3",
    "EVERTURN_SPLIT_MIN_TOKENS": str(SPLIT_MIN_TOKENS),
    "EVERTURN_SPLIT_TIMEOUT_S": "8",
}


@dataclass(slots=True)
class Fleet:
    """All processes of one machine."""

    base: Rig
    broker: EmbeddedValkey
    worker: CeleryWorker
    folder: Path
    auditor: Engine
    """Reads the audit views, past the proxy."""
    roads: dict[Victim | Post, Road]
    """To PostgreSQL, by whose each is; and to each engine, taken where one of those is to be broken."""
    engines: dict[Post, EngineProcess] = field(default_factory=dict)
    """Those that should be up."""
    twins: dict[str, SimulatedEngine] = field(default_factory=dict)
    """Of all that ever were, by boot."""
    prefilling: set[str] = field(default_factory=set)
    """Boots of those that only prefill."""
    fault: Fault | None = None
    struck: str | None = None
    """Where the fault found its victim, once it has."""
    taken: bool = False
    counted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: list[threading.Thread] = field(default_factory=list)
    """What ends by itself, of what was done."""
    detour: bool = False
    """Engines are reached by the roads to them."""
    copied: Path | None = None
    """The broker's data, as they were."""
    errors: list[Exception] = field(default_factory=list)
    """Of ours, in threads that nobody waits for: what was to be broken was not."""

    @property
    def kv(self) -> Path:
        return self.folder / "kv"

    def prepare(self, fault: Fault) -> None:
        """What would be seen if it were done at the place of the fault."""
        if fault.victim is Victim.ENGINE_ROAD:
            self._lead_by_roads(detour=True)
        if fault.deed is Deed.RESTORE:
            self.copied = make_old_copy(self)

    def arm(self, fault: Fault) -> None:
        with self.lock:
            self.fault, self.struck, self.counted = fault, None, 0
            self.taken = False

    def disarm(self) -> None:
        with self.lock:
            self.fault = None

    def engine_of(self, fault: Fault) -> EngineProcess:
        """That the turn is for, where the fault meets none at its work."""
        return self.engines[ANSWERS_NEW if fault.kind is Kind.REBUILD else ANSWERS_OLD]

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
            self.struck = f"{step} of {engine.post}"

    def strike(self, fault: Fault, engine: EngineProcess | None, session: Session | None) -> None:
        try:
            strike(self, fault, engine, session)
        except Exception as error:
            self.errors.append(error)
            raise

    def mend(self) -> None:
        """Starts what has died; what is stopped goes on by itself."""
        for thread in self.pending:
            thread.join()
        self.pending.clear()
        self.base.mend()
        if self.broker.child.ended():
            self.broker.stop()
            self.broker.start()
        if self.worker.process is not None and self.worker.process.poll() is not None:
            self.worker.start(concurrency=1)
        for post, engine in list(self.engines.items()):
            if not engine.alive or engine.weights != post.weights:
                engine.kill()
                self.start_engine(post)
        if self.detour:
            self._lead_by_roads(detour=False)

    def start_engine(self, post: Post) -> EngineProcess:
        engine = self.take_in(EngineProcess(post.weights, self.kv, self.at, post))
        self.register(engine)
        return engine

    def take_in(self, engine: EngineProcess) -> EngineProcess:
        """As the one that is at its post now."""
        self.engines[engine.post] = engine
        self.twins[engine.boot] = engine.model
        if engine.post.role is EngineRole.PREFILL:
            self.prefilling.add(engine.boot)
        return engine

    def register(self, engine: EngineProcess) -> None:
        road = self.roads[engine.post]
        body = {
            "boot": engine.boot,
            "address": f"http://127.0.0.1:{road.port}" if self.detour else engine.address,
            "role": engine.post.role.value,
            "descriptor": self.twins[engine.boot].descriptor.to_json(),
        }
        headers = {"authorization": f"Bearer {self.base.secrets.operator}"}
        with httpx.Client(base_url=self.base.url, headers=headers, timeout=30) as admin:
            assert admin.post("/admin/engines", json=body).status_code == 201

    def _lead_by_roads(self, *, detour: bool) -> None:
        self.detour = detour
        for engine in self.engines.values():
            self.register(engine)


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """`folder` must be one that a server account other than root can enter."""
    (folder / "kv").mkdir(parents=True)
    with ExitStack() as exits:
        broker = exits.enter_context(EmbeddedValkey(folder / "valkey"))
        told = {"EVERTURN_BROKER_URL": broker.url(), **SETTINGS}
        base = exits.enter_context(rig(folder, **told))
        auditor = make_engine(base.server.url(), application_name="auditor", role=AUDITOR_ROLE)
        exits.callback(auditor.dispose)
        roads: dict[Victim | Post, Road] = {
            victim: exits.enter_context(Road(lambda: base.proxy.port))
            for victim in (Victim.API_ROAD, Victim.WORKER_ROAD)
        }
        worker = CeleryWorker(
            database_url=proxied(base.server.url(), roads[Victim.WORKER_ROAD].port),
            broker_url=broker.url(),
            log=folder / "worker.log",
        )
        exits.callback(worker.close)
        made = Fleet(base, broker, worker, folder, auditor, roads)
        exits.callback(_end_engines, made)
        for post in POSTS:
            roads[post] = exits.enter_context(Road(partial(_port, made, post)))
        worker.start(concurrency=1)
        _take_the_road(base, roads[Victim.API_ROAD])
        for post in POSTS:
            made.start_engine(post)
        _point(made)
        exits.enter_context(_beating(made))
        yield made


def _port(made: Fleet, post: Post) -> int:
    return made.engines[post].port


def _take_the_road(base: Rig, road: Road) -> None:
    """Which is there only once the server is: the API is started anew."""
    base.environment["EVERTURN_DATABASE_URL"] = proxied(base.server.url(), road.port)
    base.stop_api()
    base.start_api()


def _end_engines(made: Fleet) -> None:
    for engine in made.engines.values():
        engine.go_on()
        engine.kill()


def _point(made: Fleet) -> None:
    headers = {"authorization": f"Bearer {made.base.secrets.operator}"}
    revision = made.twins[made.engines[ANSWERS_OLD].boot].revision
    with httpx.Client(base_url=made.base.url, headers=headers, timeout=30) as admin:
        assert admin.put("/admin/aliases/production", json={"revision": revision}).status_code == 200


@contextmanager
def _beating(made: Fleet) -> Iterator[None]:
    """As launchers do; an engine that is dead or stopped is silent, and its lease runs out."""
    over = threading.Event()
    headers = {"authorization": f"Bearer {made.base.secrets.operator}"}

    def beat() -> None:
        with httpx.Client(base_url=made.base.url, headers=headers, timeout=2) as admin:
            while not over.wait(1.0):
                for engine in list(made.engines.values()):
                    if engine.alive and not engine.stopped:
                        try:
                            admin.post(f"/admin/engines/{engine.boot}/heartbeat")
                        except httpx.HTTPError:
                            continue

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everturn-faults-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
