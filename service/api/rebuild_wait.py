"""A turn's wait for the rebuild of its history: rung for, watched for a bounded time, and never needed."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from logging import getLogger
from time import monotonic

from service import turn_flow
from service.api.bell import Bell
from service.api.database import Database
from service.api.metrics import Metrics
from service.api.rebuild_looks import RebuildLooks, progress
from service.domain.events import AttemptFailed
from service.domain.head import Head
from service.domain.plan import RebuildQueue
from service.settings import Settings
from service.store import rebuilds
from service.turn_flow import Pinned

log = getLogger(__name__)

POLL_SHARE, SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 0.01, 0.05
"""Of what was waited so far: to look less often would add as much to what a rebuild takes."""


class RebuildWithdrawn(Exception):
    """The attempt has ended with it: its revision is not where the conversation is to go any more."""


Ring = Callable[[str, RebuildQueue], None]


class RebuildWait:
    def __init__(
        self,
        *,
        database: Database,
        bell: Bell,
        ring: Ring,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._clock = clock
        self._database = database
        self._looks = RebuildLooks(database)
        self._bell = bell
        self._ring = ring
        self._settings = settings
        self._metrics = metrics

    async def until_over(self, pinned: Pinned, rebuild: str, note: Callable[[str], None]) -> tuple[Head, str]:
        """The head to decode on, and why its KV is what it is; without the rebuild as exact, only slower.

        Raises:
            RebuildWithdrawn: a rollout was taken back: the turn is to be planned anew.
            FenceLost: the turn was ended elsewhere.
        """
        self._bell.ring(lambda: self._ring(rebuild, RebuildQueue.INTERACTIVE), f"rebuild {rebuild}")
        began = monotonic()
        row = await self._watched(rebuild, began, note)
        state = "lost" if row is None else row.state.value
        self._metrics.rebuild_wait_s.labels(state).observe(monotonic() - began)
        turn = pinned.pinned.turn
        if row is not None and row.state is rebuilds.RebuildState.DONE:
            return await self._rebuilt(pinned, row), pinned.pinned.reason
        if row is not None and row.state is rebuilds.RebuildState.SUPERSEDED:
            await self._withdraw(pinned, row.reason or "it is not wanted any more")
        await self._database.run(lambda conn: rebuilds.supersede(conn, turn=turn))
        why = row.reason if row is not None and row.reason else f"it was {state} in the end"
        log.warning("turn %s goes on without rebuild %s: %s", turn, rebuild, why)
        return pinned.head, f"prefilled where it decodes, without a rebuild: {why}"

    async def _rebuilt(self, pinned: Pinned, done: rebuilds.Rebuild) -> Head:
        now = self._clock()
        return await self._database.run(
            lambda conn: turn_flow.take_rebuilt(
                conn,
                tenant=pinned.head.tenant,
                conversation=pinned.head.id,
                pinned=pinned.pinned,
                done=done,
                now=now,
            )
        )

    async def _withdraw(self, pinned: Pinned, why: str) -> None:
        reason = f"its rebuild was withdrawn: {why}"
        failed = AttemptFailed(turn=pinned.pinned.turn, attempt=pinned.pinned.attempt, reason=reason)
        now = self._clock()
        await self._database.run(
            lambda conn: turn_flow.fail_attempt(
                conn,
                tenant=pinned.head.tenant,
                conversation=pinned.head.id,
                refusal=None,
                failed=failed,
                now=now,
            )
        )
        raise RebuildWithdrawn(reason)

    async def _watched(
        self, rebuild: str, began: float, note: Callable[[str], None]
    ) -> rebuilds.Rebuild | None:
        while True:
            row = await self._looks.find(rebuild)
            if row is None or row.finished_at is not None:
                return row
            waited = monotonic() - began
            unclaimed = row.state is rebuilds.RebuildState.QUEUED and waited > self._settings.rebuild_claim_s
            if unclaimed or waited > self._settings.rebuild_timeout_s:
                return row
            note(progress(row))
            await asyncio.sleep(min(max(POLL_SHARE * waited, SHORTEST_POLL_S), LONGEST_POLL_S))
