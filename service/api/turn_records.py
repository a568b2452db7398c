"""Tells the record how an attempt or a turn ended, and holds out where the database is away for a moment."""

import asyncio
from dataclasses import replace
from datetime import datetime
from logging import getLogger
from time import monotonic

from sqlalchemy import Connection

from service import orphan_flow, turn_flow, turn_log
from service.api.attempt import Answer, Attempt, AttemptLost
from service.api.turn_job import STORAGE_TROUBLE, Failure, Job, Tools
from service.conversation_flow import StoredTurn
from service.domain.artifact import MISFITS
from service.domain.errors import EngineFailed
from service.domain.events import AttemptFailed, TurnStreamed
from service.domain.telling import words
from service.domain.turn import Turn
from service.engine import client
from service.store.turns import OpenTurn
from service.turn_flow import Said

log = getLogger(__name__)

COMMIT_TRIES = 3
COMMIT_PAUSE_S = 0.3


class TurnRecords:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def accept(self, job: Job, answer: Answer) -> None:
        """Committed when it returns. A lost reply to COMMIT shows as FenceLost on the next try: it was accepted."""
        streamed, now = job.channel.record(job.turn, answer.line), self._tools.clock()

        def completed(conn: Connection) -> Turn:
            # If it is there no more, something else was recorded meanwhile, and the next try reads where it stands.
            head, job.head = job.head, None
            return turn_flow.complete_turn(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                refusal=answer.refusal,
                completed=answer.completed,
                now=now,
                streamed=streamed,
                scored=answer.scored,
                parsed=answer.parsed,
                head=head,
            )

        for number in range(1, COMMIT_TRIES + 1):
            try:
                turn = await self._tools.database.run(completed)
                job.channel.answered = _answered(job, answer, turn, streamed, now)
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

    async def record_lost(self, job: Job, attempt: Attempt, lost: AttemptLost) -> None:
        log.warning("attempt %s was lost: %s", attempt.id, lost)
        self._tools.metrics.attempts_failed.inc()
        if lost.refusal is not None:
            self._tools.metrics.refusals.labels(lost.refusal.refusal.reason.value).inc()
        if lost.refusal is None or lost.refusal.refusal.reason in MISFITS:
            # An engine that lost an attempt to broken KV is well; another may be gone, and its lease not yet out.
            job.avoid[attempt.engine.boot] = monotonic() + self._tools.settings.engine_lease_s
        failed = AttemptFailed(
            turn=job.turn, attempt=attempt.pinned.attempt, reason=str(lost), partial_text=lost.text
        )
        await self._tools.database.run(
            lambda conn: turn_flow.fail_attempt(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                refusal=lost.refusal,
                failed=failed,
                now=self._tools.clock(),
            )
        )

    async def fail(self, job: Job, code: str, message: str) -> Failure:
        """What could not be recorded either is left to the sweeper, as an orphan."""
        self._tools.metrics.turns.labels(job.plan, "failed").inc()
        try:
            await self._tools.database.run(
                lambda conn: turn_flow.fail_turn(
                    conn,
                    tenant=job.tenant,
                    conversation=job.conversation,
                    turn=job.turn,
                    code=code,
                    message=message,
                    now=self._tools.clock(),
                    said=self.said(job),
                )
            )
        except STORAGE_TROUBLE as error:
            log.exception("the failure of turn %s could not be recorded", job.turn, exc_info=error)
        return code, message

    def said(self, job: Job) -> Said:
        return Said(text=words(job.channel.view.text), streamed=job.channel.record(job.turn))

    async def plan_again(self, job: Job) -> bool:
        """An attempt that is begun and nobody's is given up. False where the turn is another's by now, or has ended."""
        turn = OpenTurn(tenant=job.tenant, conversation=job.conversation, turn=job.turn)
        try:
            return await self._tools.database.run(
                lambda conn: orphan_flow.retake(conn, turn, owner=self._tools.owner, now=self._tools.clock())
            )
        except STORAGE_TROUBLE as error:
            log.warning("turn %s waits for the database: %s", job.turn, error)
            return True

    async def record_published(self, job: Job, attempt: Attempt) -> None:
        """After the answer: losing this loses speed, nothing else."""
        try:
            evidence = await client.evidence(
                self._tools.http, attempt.engine, attempt.id, self._tools.settings.publish_wait_s
            )
            published = evidence.published if evidence else None
            if published is None or published.revision != attempt.pinned.revision:
                return
            await self._tools.database.run(
                lambda conn: turn_log.record_published(
                    conn,
                    tenant=job.tenant,
                    conversation=job.conversation,
                    published=published,
                    now=self._tools.clock(),
                )
            )
        except (EngineFailed, *STORAGE_TROUBLE) as error:
            log.warning("KV of attempt %s is not recorded: %s", attempt.id, error)


def _answered(
    job: Job, answer: Answer, turn: Turn, streamed: TurnStreamed | None, now: datetime
) -> StoredTurn | None:
    """What would be read back now: heads are without words, and these are known here."""
    if job.accepted is None:
        return None
    whole = replace(
        turn,
        started=job.accepted.turn.started,
        asked=job.accepted.turn.asked,
        streamed=streamed,
        scored=answer.scored,
        parsed=answer.parsed,
        completed=answer.completed,
    )
    return replace(job.accepted, turn=whole, completed_at=now)
