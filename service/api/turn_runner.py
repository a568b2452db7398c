"""The loop of a turn: plan, wait, rebuild, decode, accept. It runs to its end, whoever still listens."""

import asyncio
from collections.abc import Coroutine
from logging import getLogger
from time import monotonic

from service import turn_flow
from service.api.attempt import Attempt, AttemptLost, run_attempt
from service.api.channel import TurnChannel, View
from service.api.placement import Placement
from service.api.prefill_split import PrefillSplit
from service.api.rebuild_wait import RebuildWait, RebuildWithdrawn
from service.api.turn_job import STORAGE_TROUBLE, Failure, Job, Tools, TurnLost
from service.api.turn_records import TurnRecords
from service.conversation_flow import CANCELLED, Accepted, find_response
from service.domain.artifact import ArtifactId
from service.domain.errors import FenceLost, InvalidInput
from service.domain.events import ConversationId, ItemId, TenantId, TurnId
from service.domain.turn import TurnState
from service.store import heads, turns
from service.turn_flow import Pinned

log = getLogger(__name__)

MAX_ATTEMPTS = 3
FOLLOW_EVERY_S = 0.25
RENEWALS_PER_LEASE = 3


class TurnRunner:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._database = tools.database
        self._settings = tools.settings
        self._placement = Placement(tools)
        self._records = TurnRecords(tools)
        self._split = PrefillSplit(tools)
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
            failure = await self._records.fail(job, lost.code, str(lost))
        except InvalidInput as error:
            failure = await self._records.fail(job, error.code, str(error))
        except FenceLost as error:
            log.warning("turn %s was ended elsewhere: %s", job.turn, error)
        except STORAGE_TROUBLE as error:
            log.exception("turn %s lost its database", job.turn, exc_info=error)
            failure = await self._records.fail(
                job, "storage_unavailable", "The database failed before the answer was accepted."
            )
        except asyncio.CancelledError:
            failure = ("orphaned", "The service stopped working on this turn before it had an answer.")
            raise
        except Exception:  # whatever broke, the turn must end, and its readers be told
            log.exception("turn %s failed on an error of ours", job.turn)
            failure = await self._records.fail(job, "internal_error", "The service failed on this turn.")
        finally:
            keeper.cancel()
            job.channel.end(failure)
            del self._running[job.turn]

    async def _answer(self, job: Job) -> None:
        last: AttemptLost | RebuildWithdrawn | None = None
        for _ in range(MAX_ATTEMPTS):
            pinned = await self._placement.pin(job)
            try:
                attempt = await self._prepare(job, pinned)
            except RebuildWithdrawn as withdrawn:
                last = withdrawn
                continue
            try:
                answer = await run_attempt(
                    self._tools.http,
                    attempt,
                    lambda text: self._on_text(job, text),
                    lambda attempt, prompt: self._split.hand_over(job, attempt, prompt),
                )
            except AttemptLost as lost:
                await self._records.record_lost(job, attempt, lost)
                last = lost
                continue
            await self._records.accept(job, answer)
            self._spawn(self._records.record_published(job, attempt))
            return
        raise TurnLost("engine_failed", f"{MAX_ATTEMPTS} attempts failed. The last: {last}")

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
            split=pinned.split,
        )

    def _on_text(self, job: Job, text: str) -> None:
        if not job.answering:
            job.answering = True
            self._tools.metrics.first_text_s.observe(monotonic() - job.started_s)
        job.channel.say(text)

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
