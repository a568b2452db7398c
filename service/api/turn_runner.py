"""The loop of a turn: plan, wait, rebuild, decode, accept. It runs to its end, whoever still listens."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from logging import getLogger
from time import monotonic

import httpx
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service import turn_flow
from service.api.attempt import Answer, Attempt, AttemptLost, run_attempt
from service.api.channel import TurnChannel, View
from service.api.database import Database
from service.api.fleet_watch import FleetWatch
from service.api.metrics import Metrics
from service.api.rebuild_wait import RebuildWait, RebuildWithdrawn, Ring
from service.conversation_flow import CANCELLED, Accepted, find_response
from service.domain.artifact import MISFITS, ArtifactId, BootId
from service.domain.errors import EngineFailed, FenceLost, InvalidInput
from service.domain.events import AttemptFailed, ConversationId, ItemId, TenantId, TurnId
from service.domain.turn import TurnState
from service.engine import client
from service.settings import Settings
from service.store import heads, turns
from service.turn_flow import NotPinned, Pinned

log = getLogger(__name__)

MAX_ATTEMPTS = 3
PLAN_AGAIN_S = 3.0
"""At the latest, when nothing about the fleet has changed; an engine that is avoided may be tried again by then."""
BUSY_PAUSE_S = 0.5
FOLLOW_EVERY_S = 0.25
COMMIT_TRIES = 3
COMMIT_PAUSE_S = 0.3
RENEWALS_PER_LEASE = 3

STORAGE_TROUBLE = (DBAPIError, PoolTimeout)
Failure = tuple[str, str]
"""Code and message."""


class TurnLost(Exception):
    """The turn ends without an answer; the code goes into its turn.failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What turns are run with, wired once in app.py."""

    database: Database
    http: httpx.AsyncClient
    ring: Ring
    settings: Settings
    metrics: Metrics
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[str], str]


@dataclass(slots=True, kw_only=True)
class Job:
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId
    item: ItemId
    channel: TurnChannel
    started_s: float
    avoid: dict[BootId, float] = field(default_factory=dict)
    """Engines that failed this turn, and until when they are left alone."""
    plan: str = "none"
    answering: bool = False


class TurnRunner:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._database = tools.database
        self._settings = tools.settings
        self._fleet = FleetWatch(tools.database)
        self._rebuild = RebuildWait(tools.database, tools.ring, tools.settings, tools.metrics, tools.clock)
        self._running: dict[TurnId, tuple[Job, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, tenant: TenantId, accepted: Accepted, *, streamed: bool) -> TurnChannel:
        item = ItemId(self._tools.new_id("msg_"))
        channel = TurnChannel(View(item=item), cut=streamed)
        job = Job(
            tenant=tenant,
            conversation=accepted.conversation,
            turn=accepted.turn,
            item=item,
            channel=channel,
            started_s=monotonic(),
        )
        self._running[job.turn] = (job, self._spawn(self._run(job)))
        return channel

    def watch(self, tenant: TenantId, turn: TurnId) -> TurnChannel:
        """The channel of a turn that runs here, or else one that follows what is stored of it."""
        if turn in self._running:
            return self._running[turn][0].channel
        channel = TurnChannel(View(), cut=False)
        self._spawn(self._follow(tenant, turn, channel))
        return channel

    async def cancel(self, tenant: TenantId, conversation: ConversationId, turn: TurnId) -> None:
        """Recorded first, so that no answer can be accepted any more; then the engine is left.

        Another process that runs the turn finds its lease gone, and leaves the engine by itself.
        """
        job, task = self._running.get(turn, (None, None))
        streamed = None if job is None else job.channel.record(turn)
        await self._database.run(
            lambda conn: turn_flow.fail_turn(
                conn,
                tenant=tenant,
                conversation=conversation,
                turn=turn,
                code=CANCELLED,
                message="The client cancelled the response.",
                now=self._tools.clock(),
                partial_text="" if job is None else job.channel.view.text,
                streamed=streamed,
            )
        )
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Lets running turns finish until the deadline; what is cut off then ends as an orphan."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._settings.shutdown_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._rebuild.close()

    async def _run(self, job: Job) -> None:
        failure: Failure | None = None
        keeper = asyncio.create_task(self._keep_lease(job, asyncio.current_task()))
        try:
            await self._answer(job)
        except TurnLost as lost:
            failure = await self._fail(job, lost.code, str(lost))
        except InvalidInput as error:
            failure = await self._fail(job, error.code, str(error))
        except FenceLost as error:
            log.warning("turn %s was ended elsewhere: %s", job.turn, error)
        except STORAGE_TROUBLE as error:
            log.exception("turn %s lost its database", job.turn, exc_info=error)
            failure = await self._fail(
                job, "storage_unavailable", "The database failed before the answer was accepted."
            )
        except asyncio.CancelledError:
            failure = ("orphaned", "The service stopped working on this turn before it had an answer.")
            raise
        except Exception:  # whatever broke, the turn must end, and its readers be told
            log.exception("turn %s failed on an error of ours", job.turn)
            failure = await self._fail(job, "internal_error", "The service failed on this turn.")
        finally:
            keeper.cancel()
            job.channel.end(failure)
            del self._running[job.turn]

    async def _answer(self, job: Job) -> None:
        last: AttemptLost | RebuildWithdrawn | None = None
        for _ in range(MAX_ATTEMPTS):
            pinned = await self._pin(job)
            try:
                attempt = await self._prepare(job, pinned)
            except RebuildWithdrawn as withdrawn:
                last = withdrawn
                continue
            try:
                answer = await run_attempt(self._tools.http, attempt, lambda text: self._on_text(job, text))
            except AttemptLost as lost:
                await self._record_lost(job, attempt, lost)
                last = lost
                continue
            await self._accept(job, answer)
            self._spawn(self._record_published(job, attempt))
            return
        raise TurnLost("engine_failed", f"{MAX_ATTEMPTS} attempts failed. The last: {last}")

    async def _pin(self, job: Job) -> Pinned:
        """Waits until the policy finds an engine, or gives up."""
        deadline = monotonic() + self._settings.turn_wait_s
        while True:
            try:
                plan = await self._plan(job)
            except PoolTimeout:
                if monotonic() >= deadline:
                    raise
                job.channel.note("waiting: the service is busy")
                await asyncio.sleep(BUSY_PAUSE_S)
                continue
            if isinstance(plan, Pinned):
                job.plan = plan.pinned.plan
                job.channel.begin(plan.pinned.attempt, plan.pinned.revision, plan.pinned.reason)
                return plan
            _give_up(plan, deadline, self._settings.turn_wait_s)
            job.channel.note(f"waiting: {plan.reason}")
            await self._fleet.change(at_most_s=max(0.0, min(PLAN_AGAIN_S, deadline - monotonic())))

    async def _plan(self, job: Job) -> Pinned | NotPinned:
        avoid = frozenset(boot for boot, until in job.avoid.items() if until > monotonic())
        return await self._database.run(
            lambda conn: turn_flow.plan_attempt(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                turn=job.turn,
                avoid=avoid,
                rebuild_min_tokens=self._settings.rebuild_min_tokens,
                now=self._tools.clock(),
                new_id=self._tools.new_id,
            )
        )

    async def _prepare(self, job: Job, pinned: Pinned) -> Attempt:
        head, note = pinned.head, pinned.pinned.reason
        if pinned.rebuild is not None:
            head, note = await self._rebuild.until_over(pinned, pinned.rebuild, job.channel.note)
        transcript = await self._database.run(
            lambda conn: heads.load_transcript(conn, job.tenant, job.conversation)
        )
        return Attempt(
            tenant=job.tenant,
            turn=head.turns[job.turn],
            transcript=transcript,
            pinned=pinned.pinned,
            engine=pinned.engine,
            item=job.item,
            publish=ArtifactId(self._tools.new_id("kv_")),
            kv_lease_s=self._settings.kv_lease_s,
            note=note,
        )

    def _on_text(self, job: Job, text: str) -> None:
        if not job.answering:
            job.answering = True
            self._tools.metrics.first_text_s.observe(monotonic() - job.started_s)
        job.channel.say(text)

    async def _accept(self, job: Job, answer: Answer) -> None:
        """Committed when it returns. A lost reply to COMMIT shows as FenceLost on the next try: it was accepted."""
        for number in range(1, COMMIT_TRIES + 1):
            try:
                await self._database.run(
                    lambda conn: turn_flow.complete_turn(
                        conn,
                        tenant=job.tenant,
                        conversation=job.conversation,
                        refusal=answer.refusal,
                        completed=answer.completed,
                        now=self._tools.clock(),
                        streamed=job.channel.record(job.turn, answer.completed.text),
                        scored=answer.scored,
                    )
                )
                break
            except STORAGE_TROUBLE:
                if number == COMMIT_TRIES:
                    raise
                await asyncio.sleep(COMMIT_PAUSE_S * number)
        if answer.refusal is not None:
            self._tools.metrics.refusals.labels(answer.refusal.refusal.reason.value).inc()
        if answer.completed.loaded is not None and answer.completed.loaded.contract is not None:
            self._tools.metrics.contract_uses.inc()
        self._tools.metrics.turns.labels(job.plan, "completed").inc()

    async def _record_lost(self, job: Job, attempt: Attempt, lost: AttemptLost) -> None:
        log.warning("attempt %s was lost: %s", attempt.id, lost)
        self._tools.metrics.attempts_failed.inc()
        if lost.refusal is not None:
            self._tools.metrics.refusals.labels(lost.refusal.refusal.reason.value).inc()
        if lost.refusal is None or lost.refusal.refusal.reason in MISFITS:
            # An engine that lost an attempt to broken KV is well; another may be gone, and its lease not yet out.
            job.avoid[attempt.engine.boot] = monotonic() + self._settings.engine_lease_s
        failed = AttemptFailed(
            turn=job.turn, attempt=attempt.pinned.attempt, reason=str(lost), partial_text=lost.text
        )
        await self._database.run(
            lambda conn: turn_flow.fail_attempt(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                refusal=lost.refusal,
                failed=failed,
                now=self._tools.clock(),
            )
        )

    async def _fail(self, job: Job, code: str, message: str) -> Failure:
        """What could not be recorded either is left to the sweeper, as an orphan."""
        self._tools.metrics.turns.labels(job.plan, "failed").inc()
        try:
            await self._database.run(
                lambda conn: turn_flow.fail_turn(
                    conn,
                    tenant=job.tenant,
                    conversation=job.conversation,
                    turn=job.turn,
                    code=code,
                    message=message,
                    now=self._tools.clock(),
                    streamed=job.channel.record(job.turn),
                )
            )
        except STORAGE_TROUBLE as error:
            log.exception("the failure of turn %s could not be recorded", job.turn, exc_info=error)
        return code, message

    async def _record_published(self, job: Job, attempt: Attempt) -> None:
        """After the answer: losing this loses speed, nothing else."""
        try:
            evidence = await client.evidence(
                self._tools.http, attempt.engine, attempt.id, self._settings.publish_wait_s
            )
            published = evidence.published if evidence else None
            if published is None or published.revision != attempt.pinned.revision:
                return
            await self._database.run(
                lambda conn: turn_flow.record_published(
                    conn,
                    tenant=job.tenant,
                    conversation=job.conversation,
                    published=published,
                    now=self._tools.clock(),
                )
            )
        except (EngineFailed, *STORAGE_TROUBLE) as error:
            log.warning("KV of attempt %s is not recorded: %s", attempt.id, error)

    async def _keep_lease(self, job: Job, work: "asyncio.Task[None] | None") -> None:
        """Once the lease is another's, what is done here could not be accepted any more."""
        while True:
            await asyncio.sleep(self._settings.turn_lease_s / RENEWALS_PER_LEASE)
            try:
                kept = await self._database.run(
                    lambda conn: turns.renew_lease(
                        conn, turn=job.turn, owner=self._tools.owner, lease_s=self._settings.turn_lease_s
                    )
                )
            except STORAGE_TROUBLE as error:
                log.warning("the lease of turn %s could not be renewed: %s", job.turn, error)
                continue
            if not kept and work is not None:
                work.cancel()
                return

    async def _follow(self, tenant: TenantId, turn: TurnId, channel: TurnChannel) -> None:
        settings = self._settings
        limit_s = settings.turn_wait_s + settings.rebuild_timeout_s + settings.engine_silence_s
        failure: Failure | None = ("still_running", f"Response {turn} is still running; read it later.")
        deadline = monotonic() + limit_s
        try:
            while monotonic() < deadline:
                stored = await self._database.run(lambda conn: find_response(conn, tenant, turn))
                if stored.turn.state in (TurnState.COMPLETED, TurnState.FAILED):
                    failure = None
                    break
                await asyncio.sleep(FOLLOW_EVERY_S)
        except STORAGE_TROUBLE as error:
            log.warning("turn %s cannot be followed: %s", turn, error)
        finally:
            channel.end(failure)

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _give_up(plan: NotPinned, deadline: float, waited_s: float) -> None:
    if plan.final:
        raise TurnLost("revision_unavailable", f"The turn may not go on elsewhere: {plan.reason}.")
    if monotonic() >= deadline:
        raise TurnLost("no_engine", f"The turn waited {waited_s:g} s for an engine: {plan.reason}.")
