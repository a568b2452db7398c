"""Turns that run in this process: each to its end, whoever still listens, or until it is another's."""

import asyncio
from collections.abc import Coroutine
from logging import getLogger
from time import monotonic
from typing import Any

from service import orphan_flow, turn_flow
from service.api.bell import Bell
from service.api.channel import TurnChannel, View
from service.api.follower import Follower
from service.api.prompt import Prompt, begin_prompt
from service.api.pulse import Pulse
from service.api.turn_job import STORAGE_TROUBLE, Failure, Job, Taken, Tools, TurnLost
from service.api.turn_loop import TurnLoop
from service.api.turn_records import TurnRecords
from service.conversation_flow import CANCELLED, DISCONNECTED
from service.domain.cuts import Retelling, Unkept, item_of
from service.domain.errors import FenceLost, InvalidInput
from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.terms import USUAL, OnDisconnect, Terms
from service.store import turn_chunks
from service.store.turn_queue import Claimed
from service.store.turns import OpenTurn
from service.turn_flow import NotPinned, Pinned

log = getLogger(__name__)

TASKS_TO_ENGINE = 3
"""That follow each other from the start of a turn to its request: the turn's, its work's, and the one that writes the body."""

STOPPED: Failure = ("orphaned", "The service stopped working on this turn before it had an answer.")


class TurnRunner:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._database = tools.database
        self._settings = tools.settings
        self._bell = Bell(tools.metrics)
        self._records = TurnRecords(tools)
        self._loop = TurnLoop(tools, self._records, self._bell)
        self._pulse = Pulse(tools.database, owner=tools.owner, lease_s=tools.settings.turn_lease_s)
        self._follower = Follower(tools)
        self._running: dict[TurnId, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, tenant: TenantId, taken: Taken, *, streamed: bool, terms: Terms = USUAL) -> TurnChannel:
        """A turn that this process has just accepted."""
        accepted = taken.accepted
        channel = TurnChannel(View(item=item_of(accepted.turn)), cut=streamed)
        channel.unkept = Unkept()
        job = Job(
            tenant=tenant,
            conversation=accepted.conversation,
            turn=accepted.turn,
            item=item_of(accepted.turn),
            channel=channel,
            started_s=monotonic(),
            terms=terms,
            left_s=terms.deadline_s,
            accepted=None if accepted.begun is None else accepted.begun.stored,
            plan_made=taken.plan,
            prompt=taken.prompt,
        )
        self._start(job)
        return channel

    def begin_prompt(self, plan: Pinned | NotPinned | None) -> "asyncio.Task[Prompt] | None":
        """Of a turn that is about to be committed, and started then."""
        return begin_prompt(self._tools.http, plan) if isinstance(plan, Pinned) else None

    async def get_going(self) -> None:
        """So that what was just started asks its engine, if it can at once, before its client is told of it: the engine takes longer."""
        for _ in range(TASKS_TO_ENGINE):
            await asyncio.sleep(0)

    async def finish(self, claimed: Claimed) -> None:
        """A turn that this process has taken from the queue; what was said of it before is gone on from."""
        item = item_of(claimed.turn)
        channel = TurnChannel(View(item=item), cut=claimed.streamed)
        chunks = await self._database.run(
            lambda conn: turn_chunks.read(conn, tenant=claimed.tenant, turn=claimed.turn)
        )
        retelling = Retelling(channel, direct=not claimed.background)
        retelling.tell(chunks)
        retelling.take_over()
        channel.unkept = Unkept(claim=claimed.claim, number=retelling.next)
        job = Job(
            tenant=claimed.tenant,
            conversation=claimed.conversation,
            turn=claimed.turn,
            item=item,
            channel=channel,
            started_s=monotonic(),
            left_s=claimed.left_s,
            followed=False,
        )
        await self._start(job)

    def watch(self, tenant: TenantId, turn: TurnId) -> TurnChannel:
        """The channel of a turn that runs here, or else one that follows what is stored of it."""
        if turn in self._running:
            return self._running[turn].channel
        return self._follower.channel(tenant, turn)

    def ring(self, turn: TurnId) -> "asyncio.Task[None]":
        """For a turn that waits for a worker."""
        return self._bell.ring(lambda: self._tools.ring_turn(turn), f"turn {turn}")

    async def cancel(self, tenant: TenantId, conversation: ConversationId, turn: TurnId) -> None:
        """Recorded first, so that no answer can be accepted any more; then the engine is left.

        Another process that runs the turn finds its lease gone, and leaves the engine by itself.
        """
        await self._end(tenant, conversation, turn, CANCELLED, "The client cancelled the response.")

    def left(self, turn: TurnId) -> None:
        """Somebody who listened has gone; a turn that is for nobody else may end with that."""
        job = self._running.get(turn)
        if job is None or job.terms.on_disconnect is OnDisconnect.CONTINUE:
            return
        if job.channel.readers or job.channel.view.ended or job.decided:
            return
        message = "The client went away, and had asked for the response to be cancelled then."
        self._spawn(self._end(job.tenant, job.conversation, turn, DISCONNECTED, message))

    async def close(self) -> None:
        """Lets running turns finish until the deadline; what is cut off then is handed over, or ends as an orphan."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._settings.shutdown_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._follower.close()
        await self._pulse.close()
        self._bell.close()

    def _start(self, job: Job) -> "asyncio.Task[None]":
        self._running[job.turn] = job
        return self._spawn(self._run(job))

    async def _run(self, job: Job) -> None:
        failure: Failure | None = None
        job.work = asyncio.create_task(self._loop.run(job))
        self._pulse.add(job, lost=lambda: _lose(job))
        try:
            await asyncio.wait({job.work})
            failure = await self._outcome(job, job.work)
        except asyncio.CancelledError:
            job.work.cancel()
            await asyncio.wait({job.work})
            await self._hand_over(job)
            failure = STOPPED
            raise
        finally:
            self._pulse.remove(job.turn)
            if job.prompt is not None:
                job.prompt.cancel()
            job.channel.end(failure)
            del self._running[job.turn]

    async def _outcome(self, job: Job, work: "asyncio.Task[None]") -> Failure | None:
        """What its readers are told where the record says nothing of its end."""
        if job.ended:
            return None
        try:
            if not work.cancelled():
                work.result()
                self._spawn(self._loop.record_published(job))
                return None
        except TurnLost as lost:
            return await self._records.fail(job, lost.code, str(lost))
        except InvalidInput as error:
            return await self._records.fail(job, error.code, str(error))
        except FenceLost as error:
            log.warning("turn %s is another's, or has ended: %s", job.turn, error)
        except STORAGE_TROUBLE as error:
            log.exception("turn %s lost its database", job.turn, exc_info=error)
            message = "The database failed before the answer was accepted."
            return await self._records.fail(job, "storage_unavailable", message)
        except Exception:  # whatever broke, the turn must end, and its readers be told
            log.exception("turn %s failed on an error of ours", job.turn)
            return await self._records.fail(job, "internal_error", "The service failed on this turn.")
        self._pulse.remove(job.turn)
        return await self._follower.until_ended(job.tenant, job.turn) if job.followed else None

    async def _end(
        self, tenant: TenantId, conversation: ConversationId, turn: TurnId, code: str, message: str
    ) -> None:
        job = self._running.get(turn)
        said = None if job is None or job.lost else self._records.said(job)
        await self._database.run(
            lambda conn: turn_flow.fail_turn(
                conn,
                tenant=tenant,
                conversation=conversation,
                turn=turn,
                code=code,
                message=message,
                now=self._tools.clock(),
                said=said,
            )
        )
        if job is not None and job.work is not None and not job.lost:
            job.ended = True
            job.work.cancel()

    async def _hand_over(self, job: Job) -> None:
        """While this service stops; what cannot be handed over now is found by the sweeper."""
        turn = OpenTurn(tenant=job.tenant, conversation=job.conversation, turn=job.turn)
        try:
            await self._pulse.store()
            handed = await self._database.run(
                lambda conn: orphan_flow.hand_over(
                    conn,
                    turn,
                    owner=self._tools.owner,
                    finish=self._settings.finishes_orphans,
                    now=self._tools.clock(),
                )
            )
        except STORAGE_TROUBLE as error:
            log.warning("turn %s is left to the sweeper: %s", job.turn, error)
            return
        if handed:
            await self.ring(job.turn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _lose(job: Job) -> None:
    """What is done here could not be accepted any more; an answer that is being recorded finds that out by itself."""
    if job.work is not None and not job.decided and not job.lost:
        job.lost = True
        job.work.cancel()
