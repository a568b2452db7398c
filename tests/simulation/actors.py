"""The product's own loops as processes of the simulation: API, pool process of a worker, beat."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from pydantic import SecretStr
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from service import conversation_flow
from service.api.acceptance import accept
from service.api.metrics import Metrics
from service.api.rebuild_wait import Ring
from service.api.turn_job import Tools
from service.api.turn_runner import TurnRunner
from service.conversation_flow import StoredTurn
from service.domain.events import (
    ConversationId,
    OnUpgrade,
    Role,
    Sampling,
    TenantId,
    TurnId,
)
from service.domain.new_items import NOTHING_WANTED, NewMessage, Wants
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.domain.terms import USUAL, Terms
from service.queue import REBUILD_TASK
from service.settings import Settings
from service.store import turn_queue
from service.store.turn_queue import Claimed
from service.turn_request import TurnRequest
from tests.simulation import clock
from tests.simulation.broker import Bell, Broker, Message
from tests.simulation.faults import Moment, Verdict
from tests.simulation.http import AsyncClient, Client
from tests.simulation.process import AsyncDatabase, Process, Server, SyncDatabase
from tests.simulation.wire import Network
from workers.backlog import Backlog
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild
from workers.rollouts import advance_rollouts
from workers.sweeper import PERIOD_S, sweep
from workers.turn_sweep import TurnSweep
from workers.turn_work import rebuild_here

Result = TypeVar("Result")
TENANT = TenantId("acme")
SAMPLING = Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0)
SETTINGS = Settings(
    database_url=SecretStr("postgresql://nowhere"),
    engine_lease_s=6,
    engine_silence_s=8,
    turn_lease_s=6,
    turn_wait_s=30,
    rebuild_timeout_s=25,
    rebuild_claim_s=6,
    rebuild_min_tokens=12,
    warm_min_tokens=12,
    rebuild_chunk_tokens=16,
    split_min_tokens=24,
    split_timeout_s=10,
    max_waiting_turns=50,
    publish_wait_s=3,
    shutdown_s=1,
)
BEAT_S = PERIOD_S * 2
"""It comes by half as often as in production: most of the time it finds nothing to do."""
METRICS = Metrics()
"""Of all runs: nobody reads them."""


class ConnectionLost(Exception):
    """Of a client: the process that it asked has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    conversation: ConversationId
    key: str
    text: str
    on_upgrade: OnUpgrade | None = None
    revision: RevisionDigest | None = None
    """The only one that may answer."""
    streamed: bool = False
    scored: bool = False
    """Whether log-probabilities are asked for."""
    truncate: bool = False
    terms: Terms = USUAL
    wants: Wants = NOTHING_WANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What all processes reach."""

    server: Server
    broker: Broker
    network: Network


class Api:
    def __init__(self, site: Site, name: str) -> None:
        self.process = Process(name, "api")
        self.database = AsyncDatabase(site.server, self.process)
        self.tasks: set[asyncio.Task[Any]] = set()
        # Under these names service.api.acceptance finds what it needs.
        self.settings, self.owner = SETTINGS, name
        self.clock, self.new_id = clock.utc_now, clock.new_id
        self.runner = TurnRunner(_tools(site, self.process, Bell(site.broker, self.process), owner=name))
        self.closing = False

    async def stop(self) -> None:
        """As service.api.app does it once it takes no more requests."""
        await self.runner.close()
        self.process.kill()

    async def serve(self, work: Coroutine[Any, Any, Result]) -> Result:
        """A request of a client. Raises: ConnectionLost."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        death = asyncio.create_task(self.process.died.wait())
        try:
            await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if task.done():
            return task.result()
        raise ConnectionLost

    async def create(self) -> ConversationId:
        return await self.database.run(
            lambda conn: conversation_flow.create_conversation(
                conn,
                tenant=TENANT,
                alias="production",
                on_upgrade=None,
                metadata={},
                messages=(),
                now=clock.utc_now(),
                new_id=clock.new_id,
            )
        )

    async def respond(self, ask: Ask) -> StoredTurn:
        """As service.api.responses does it: accepted, run or watched to its end, and read."""
        taken = await accept(cast("Any", self), _request(ask))
        accepted = taken.accepted
        if ask.terms.background:
            if accepted.fresh:
                self.runner.ring(accepted.turn)
            channel = self.runner.watch(TENANT, accepted.turn)
        elif accepted.fresh:
            channel = self.runner.start(TENANT, taken, streamed=ask.streamed, terms=ask.terms)
        else:
            channel = self.runner.watch(TENANT, accepted.turn)
        try:
            with channel.read():
                await channel.ended()
        finally:
            self.runner.left(accepted.turn)
        return channel.answered or await self._read(accepted.turn)

    async def cancel(self, ask: Ask) -> None:
        found = (await accept(cast("Any", self), _request(ask))).accepted
        await self.runner.cancel(TENANT, found.conversation, found.turn)

    async def _read(self, turn: TurnId) -> StoredTurn:
        return await self.database.run(lambda conn: conversation_flow.find_response(conn, TENANT, turn))


def _tools(site: Site, process: Process, bell: Bell, *, owner: str, ring: Ring | None = None) -> Tools:
    return Tools(
        database=AsyncDatabase(site.server, process),
        http=cast("Any", AsyncClient(site.network.asked_by(process), SETTINGS.engine_silence_s)),
        ring=ring or bell.ring,
        ring_turn=bell.ring_turn,
        settings=SETTINGS,
        metrics=METRICS,
        owner=owner,
        clock=clock.utc_now,
        new_id=clock.new_id,
    )


def _request(ask: Ask) -> TurnRequest:
    return TurnRequest(
        tenant=TENANT,
        tenant_policy=None,
        conversation=ask.conversation,
        previous=None,
        alias=None,
        default_alias="production",
        messages=(NewMessage(role=Role.USER, text=ask.text),),
        instructions=None,
        on_upgrade=ask.on_upgrade,
        revision=ask.revision,
        sampling=replace(SAMPLING, top_logprobs=1) if ask.scored else SAMPLING,
        metadata={},
        idempotency_key=ask.key,
        request_hash=ask.text,
        wants=ask.wants,
        terms=ask.terms,
        streamed=ask.streamed,
        truncate=ask.truncate,
        turn=TurnId(clock.new_id("resp_")),
    )


class PoolChild:
    """One process of a worker's pool, with the broker's acknowledgement around it."""

    def __init__(self, site: Site, name: str, queues: tuple[RebuildQueue, ...]) -> None:
        self.process = Process(name, "worker")
        self._site = site
        self._queues = queues
        self._bell = Bell(site.broker, self.process)
        self._pool = PoolProcess(
            database=cast("Any", SyncDatabase(site.server, self.process)),
            http=cast("Any", Client(site.network.asked_by(self.process), SETTINGS.rebuild_timeout_s)),
            settings=SETTINGS,
        )

    async def run(self) -> None:
        faults = self._site.network.faults
        while True:
            message, queue = await self._site.broker.receive(self._queues)
            if not self.process.alive:
                self._site.broker.give_back(message, queue)
                return
            # Of a turn the message is done with once it is taken: its row is somebody's then.
            late = message.task == REBUILD_TASK
            held = asyncio.create_task(self.process.died.wait()) if late else None
            if held is not None:
                held.add_done_callback(_giving_back(self._site.broker, message, queue))
            await self.process.gate()
            try:
                await self._work(message)
            except Exception as error:  # noqa: BLE001 Celery logs what a task raises, and acknowledges
                faults.say(f"{self.process.name}: {type(error).__name__}: {error}")
            if faults.meet(self.process, ["broker.acknowledge"], Moment.BEFORE) is Verdict.DIE:
                return
            if held is not None:
                held.cancel()
            faults.meet(self.process, ["broker.acknowledge"], Moment.AFTER)

    async def _work(self, message: Message) -> None:
        if message.task == REBUILD_TASK:
            await greenlet_spawn(run_rebuild, self._pool, message.name)
            return
        # As workers.turn_work does it, which makes a loop of its own for it.
        owner = clock.new_id("worker_")
        claimed = await greenlet_spawn(self._claim, TurnId(message.name), owner)
        if claimed is None:
            return
        runner = TurnRunner(
            _tools(
                self._site,
                self.process,
                self._bell,
                owner=owner,
                ring=lambda name, _: rebuild_here(self._pool, name),
            )
        )
        try:
            await runner.finish(claimed)
        finally:
            await runner.close()

    def _claim(self, turn: TurnId, owner: str) -> Claimed | None:
        with self._pool.database.begin() as conn:
            return turn_queue.claim(conn, turn=turn, owner=owner, lease_s=SETTINGS.turn_lease_s)


def _giving_back(
    broker: Broker, message: Message, queue: RebuildQueue
) -> Callable[["asyncio.Task[Any]"], None]:
    def died(held: "asyncio.Task[Any]") -> None:
        if not held.cancelled():
            broker.give_back(message, queue)

    return died


class Beat:
    """The worker's beat: sweeps, and moves rollouts; as workers.sweeper's scheduler ticks."""

    def __init__(self, site: Site, name: str) -> None:
        self.process = Process(name, "beat")
        self._faults = site.network.faults
        self._database = cast("Any", SyncDatabase(site.server, self.process))
        self._bell = cast("Any", Bell(site.broker, self.process))
        self._backlog = Backlog()
        self._turns = TurnSweep(SETTINGS)

    async def run(self) -> None:
        while True:
            await self.process.gate()
            await greenlet_spawn(self._tick)
            await asyncio.sleep(BEAT_S)

    def _tick(self) -> None:
        try:
            self._turns.step(self._database, self._bell.ring_turn)
            sweep(self._database, self._bell, self._backlog)
            advance_rollouts(self._database, self._bell.ring, warm_min_tokens=SETTINGS.warm_min_tokens)
        except SQLAlchemyError as error:
            self._faults.say(f"the sweep has to wait: {error}")
            self._turns.interrupted()
