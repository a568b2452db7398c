"""One run: everything is started, talked to, broken, mended, and waited for."""

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256
from random import Random
from typing import Any, cast

from sqlalchemy.exc import SQLAlchemyError

from service import rollout_flow
from service.domain.artifact import BootId
from service.domain.errors import EverturnError
from service.domain.plan import EngineRole, RebuildQueue
from service.domain.revision import Descriptor
from service.rollout_flow import NewEngine
from tests.engines.simulated import descriptor
from tests.simulation import clock
from tests.simulation.actors import SETTINGS, Api, Beat, PoolChild, Site
from tests.simulation.broker import Broker
from tests.simulation.clients import Client, Operator
from tests.simulation.engine import Engine
from tests.simulation.faults import Faults, Planned, Storm
from tests.simulation.kv_store import KvStore
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import AsyncDatabase, Process, Server
from tests.simulation.scenario import Scenario
from tests.simulation.tables import Session, Tables
from tests.simulation.weather import STORMS, strike
from tests.simulation.wire import Host, Network

QUEUES = (RebuildQueue.INTERACTIVE, RebuildQueue.BACKGROUND)
SETTLE_S = 300.0
"""After the faults: within this every turn has ended, and every rebuild."""
TICK_S = 2.0


class World:
    def __init__(
        self,
        loop: VirtualLoop,
        scenario: Scenario,
        *,
        planned: Planned | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.loop, self.random, self.scenario = loop, loop.random, scenario
        self._trace = trace
        self.digest = sha256()
        """Of all that happened: two runs of one seed have the same."""
        self.faults = Faults(
            self.random, scenario.rates, loop.time, self.say, planned, scenario.faults_until_s
        )
        self.faults.let_loose = self._let_loose
        self.server = Server(Tables(), self.faults, watchers=[self._committed])
        self.store = KvStore(kept=scenario.kv_kept)
        self.network = Network(self.faults, max_model_len=scenario.max_model_len, token_s=scenario.token_s)
        self.broker = Broker(self.faults)
        self.site = Site(server=self.server, broker=self.broker, network=self.network)
        self.old = descriptor("v12")
        self.new = descriptor("v13", tokenizer=scenario.tokenizer)
        self.revisions = (self.old.digest, self.new.digest)
        self.engines: dict[BootId, Engine] = {}
        """All that ever were."""
        self.apis: list[Api] = []
        self.processes: list[Process] = []
        self.clients = [Client(self, number) for number in range(scenario.conversations)]
        self.settled = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._numbers: dict[str, int] = {}

    def say(self, what: str) -> None:
        self.digest.update(f"{self.loop.time():.6f} {what}\n".encode())
        if self._trace is not None:
            self._trace(f"{self.loop.time():8.3f} {what}")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[Any]") -> None:
        """Whoever of the world's own ends in an error would only be missing: an engine without heartbeats, say."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.errors.append(f"{task.get_name()}: {error!r}")

    async def run(self) -> None:
        self.start()
        talking = [self.spawn(client.talk()) for client in self.clients]
        self.spawn(Operator(self).operate())
        if self.scenario.storms:
            self.spawn(self._weather())
        _, still = await asyncio.wait(talking, timeout=self.scenario.faults_until_s)
        self._mend()
        if still:
            await asyncio.wait(still, timeout=SETTLE_S + self.scenario.turns * self.scenario.think_s * 10)
        deadline = self.loop.time() + SETTLE_S
        while not self.settled and self.loop.time() < deadline:
            quiet = self.quiet()
            # Once more after the next tick of the beat, which may find something to do.
            await asyncio.sleep(TICK_S)
            self.settled = quiet and self.quiet()

    def close(self) -> None:
        """Lets go of all who still wait."""
        for process in self.processes:
            process.over = True
            process.kill()
        for _ in range(5):
            pending = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            if not pending:
                return
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))

    def any_api(self) -> Api | None:
        alive = [api for api in self.apis if api.process.alive and not api.closing]
        return self.random.choice(alive) if alive else None

    def restart_apis(self) -> None:
        """As SIGTERM does it, all at once."""
        for api in self.apis:
            if api.process.alive and not api.closing:
                api.closing = True
                self.spawn(api.stop())

    def start(self) -> None:
        """The operator's first deeds, before anything can go wrong; then all that runs."""
        session = Session(self.server.tables)
        now = clock.utc_now()
        for weights in (self.old, self.new):
            rollout_flow.register_revision(cast("Any", session), weights, label=None)
        rollout_flow.move_alias(
            cast("Any", session),
            alias="production",
            revision=self.revisions[0],
            on_upgrade=None,
            by="op",
            now=now,
        )
        # With engines that only prefill, the others only decode.
        prefill, engines = self.scenario.prefill, self.scenario.engines
        role = EngineRole.DECODE if prefill else EngineRole.BOTH
        for number in range(engines + prefill):
            for own in (self.old, self.new):
                self._host(number, own, role if number < engines else EngineRole.PREFILL)
        for _ in range(self.scenario.apis):
            self.spawn(self._keep_up(self._api))
        for _ in range(self.scenario.pool):
            self.spawn(self._keep_up(self._worker))
        self.spawn(self._keep_up(self._beat))

    async def _keep_up(self, start: Callable[[], Process]) -> None:
        """As a supervisor does."""
        while True:
            process = start()
            await process.died.wait()
            await asyncio.sleep(0.2 + self.random.random() * 3)

    def _api(self) -> Process:
        api = self._made(Api(self.site, self._name("api")))
        self.apis = [one for one in self.apis if one.process.alive] + [api]
        return api.process

    def _worker(self) -> Process:
        child = PoolChild(self.site, self._name("worker"), QUEUES)
        self.processes.append(child.process)
        self.spawn(child.run())
        return child.process

    def _beat(self) -> Process:
        beat = Beat(self.site, self._name("beat"))
        self.processes.append(beat.process)
        self.spawn(beat.run())
        return beat.process

    def _host(self, number: int, own: Descriptor, role: EngineRole) -> None:
        address = f"http://{own.kv.weights}-{number}:8000"
        host = Host(address, own, role, None, self._process("engine"))
        host.process.kill()
        self.network.hosts[address] = host
        self.spawn(self._keep_engine(host))

    async def _keep_engine(self, host: Host) -> None:
        """As a launcher does: each start is another boot, and now and then of other weights."""
        while True:
            weights, host.mistaken = host.mistaken or host.own, None
            if self.faults.active and self.random.random() < self.scenario.rates.engine * 3:
                weights = self.random.choice((self.old, self.new))
            host.process = self._process("engine")
            host.engine = Engine(weights, BootId(clock.new_id("boot_")), self.store)
            self.engines[host.engine.boot] = host.engine
            self.say(f"engine {host.engine.boot} of {weights.kv.weights} at {host.address}")
            keeping = self.spawn(self._heartbeat(host))
            await host.process.died.wait()
            keeping.cancel()
            await asyncio.sleep(0.5 + self.random.random() * 4)

    async def _heartbeat(self, host: Host) -> None:
        assert host.engine is not None
        database, known = AsyncDatabase(self.server, host.process), False
        engine, lease_s = host.engine, SETTINGS.engine_lease_s
        hosts = frozenset({host.address.removeprefix("http://").removesuffix(":8000")})
        new = NewEngine(
            boot=engine.boot,
            address=host.address,
            role=host.role,
            descriptor=engine.own,
            expected=None,
        )
        while True:
            try:
                if known:
                    await database.run(
                        lambda conn: rollout_flow.renew_engine(conn, engine.boot, lease_s=lease_s)
                    )
                else:
                    await database.run(
                        lambda conn: rollout_flow.register_engine(
                            conn, new, allowed_hosts=hosts, lease_s=lease_s, now=clock.utc_now()
                        )
                    )
                    known = True
            except SQLAlchemyError:
                await asyncio.sleep(0.3)
                continue
            except EverturnError as error:
                self.say(f"engine {engine.boot} is told: {error}")
                host.process.kill()
                return
            await asyncio.sleep(lease_s / 3)

    async def _weather(self) -> None:
        while self.faults.active:
            await asyncio.sleep(0.5)
            struck = self.faults.strikes(self.scenario.storms, "storm", STORMS)
            if struck is not None:
                self._let_loose(Storm(struck))

    def _let_loose(self, storm: Storm) -> None:
        self.say(f"STORM {storm}")
        strike(self, storm)

    def _mend(self) -> None:
        self.say("MEND")
        self.faults.over = True
        self.server.away_until_s, self.server.slow_s = 0.0, 0.0
        self.store.away, self.store.slow_s = False, 0.0
        self.broker.come_back()
        for process in self.processes:
            process.stopped_until_s = min(process.stopped_until_s, self.loop.time())
        for host in self.network.hosts.values():
            # One of each revision is ready in the end, and none of another than its place says.
            host.mistaken = None
            engine = host.engine
            if engine is not None and (engine.revision != host.own.digest or self._withdrawn(host)):
                host.process.kill()

    def _withdrawn(self, host: Host) -> bool:
        row = self.server.tables.engines.get(host.engine.boot) if host.engine else None
        return row is not None and row.state != "ready"

    def quiet(self) -> bool:
        tables = self.server.tables
        return not tables.open_turns and not tables.unfinished

    def _committed(self, process: Process, session: Session) -> None:
        if not session.has_written:
            return
        names = " ".join(event.name for event in session.appended)
        self.say(f"{process.name} {next(iter(session.calls), 'nothing')} {names}")

    def _process(self, kind: str) -> Process:
        process = Process(self._name(kind), kind)
        self.processes.append(process)
        return process

    def _made(self, api: Api) -> Api:
        self.processes.append(api.process)
        return api

    def _name(self, kind: str) -> str:
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}{self._numbers[kind]}"


def fresh_loop(seed: int) -> VirtualLoop:
    return VirtualLoop(Random(seed))  # noqa: S311 the same each time
