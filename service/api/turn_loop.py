"""The loop of a turn: plan, wait, rebuild, decode, accept."""

import asyncio
from logging import getLogger
from time import monotonic

from sqlalchemy.exc import DBAPIError

from service.api.attempt import Attempt, AttemptLost, run_attempt
from service.api.bell import Bell
from service.api.placement import Placement
from service.api.prefill_split import PrefillSplit
from service.api.rebuild_wait import RebuildWait, RebuildWithdrawn
from service.api.turn_job import Job, Tools, TurnLost
from service.api.turn_records import TurnRecords
from service.domain.artifact import ArtifactId
from service.domain.errors import FenceLost
from service.orphan_flow import DEADLINE_EXCEEDED
from service.store import heads
from service.turn_flow import Pinned

log = getLogger(__name__)

MAX_ATTEMPTS = 3
PLAN_AGAIN_S = (0.1, 0.3, 1.0, 2.0, 3.0)
"""Pauses after plans that the database did not answer."""


class TurnLoop:
    def __init__(self, tools: Tools, records: TurnRecords, bell: Bell) -> None:
        self._tools = tools
        self._records = records
        self._placement = Placement(tools)
        self._split = PrefillSplit(tools)
        self._rebuild = RebuildWait(
            database=tools.database,
            bell=bell,
            ring=tools.ring,
            settings=tools.settings,
            metrics=tools.metrics,
            clock=tools.clock,
        )

    async def run(self, job: Job) -> None:
        """Accepted when it returns.

        Raises:
            TurnLost, InvalidInput: the turn cannot be answered.
            FenceLost: it is another's by now, or was ended elsewhere.
        """
        try:
            async with asyncio.timeout(job.left_s) as limit:
                await self._answer(job, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            message = "The turn had not been answered when its deadline passed."
            raise TurnLost(DEADLINE_EXCEEDED, message) from None

    async def record_published(self, job: Job) -> None:
        if job.attempt is not None:
            await self._records.record_published(job, job.attempt)

    async def _answer(self, job: Job, limit: asyncio.Timeout) -> None:
        last: AttemptLost | RebuildWithdrawn | None = None
        for _ in range(MAX_ATTEMPTS):
            pinned = await self._pin(job)
            try:
                job.attempt = attempt = await self._prepare(job, pinned)
            except RebuildWithdrawn as withdrawn:
                last = withdrawn
                continue
            begun, job.prompt = job.prompt, None
            try:
                answer = await run_attempt(
                    self._tools.http,
                    attempt,
                    lambda text: self._on_text(job, text),
                    lambda attempt, prompt: self._split.hand_over(job, attempt, prompt),
                    begun,
                )
            except AttemptLost as lost:
                await self._records.record_lost(job, attempt, lost)
                last = lost
                continue
            job.decided = True
            limit.reschedule(None)
            await self._records.accept(job, answer)
            return
        raise TurnLost("engine_failed", f"{MAX_ATTEMPTS} attempts failed. The last: {last}")

    async def _pin(self, job: Job) -> Pinned:
        """A plan whose COMMIT was not answered, and one of a process that has lost the turn, is given up for another."""
        for pause_s in PLAN_AGAIN_S:
            try:
                return await self._placement.pin(job)
            except (DBAPIError, FenceLost) as error:
                log.warning("turn %s could not be planned: %s", job.turn, error)
                if not await self._records.plan_again(job):
                    raise
            await asyncio.sleep(pause_s)
        return await self._placement.pin(job)

    async def _prepare(self, job: Job, pinned: Pinned) -> Attempt:
        head, note, transcript = pinned.head, pinned.pinned.reason, pinned.transcript
        if pinned.rebuild is not None:
            head, note = await self._rebuild.until_over(pinned, pinned.rebuild, job.channel.note)
        job.head = head
        if transcript is None:
            transcript = await self._tools.database.run(
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
            kv_lease_s=self._tools.settings.kv_lease_s,
            note=note,
            split=pinned.split,
        )

    def _on_text(self, job: Job, text: str) -> None:
        if not job.answering:
            job.answering = True
            self._tools.metrics.first_text_s.observe(monotonic() - job.started_s)
        job.channel.say(text)
