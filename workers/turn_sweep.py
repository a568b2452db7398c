"""Sees to turns that nobody runs: those of processes that are gone, and those that wait for a worker."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from service import orphan_flow
from service.domain.errors import EverturnError, Unavailable
from service.domain.events import TurnId
from service.domain.plan import RebuildQueue
from service.settings import Settings
from service.store import turn_chunks, turn_queue, turns
from service.store.turns import OpenTurn
from workers.backlog import Backlog

log = logging.getLogger(__name__)

BATCH = 100
QUEUED_TOO_LONG_S = 3.0
FORGET_EVERY_S = 60.0

Ring = Callable[[TurnId], None]


class TurnSweep:
    def __init__(self, settings: Settings) -> None:
        self._finish = settings.finishes_orphans
        self._lease_s = settings.turn_lease_s
        self._backlog = Backlog()
        self._judge_s = time.monotonic() + self._lease_s
        self._forget_s = 0.0

    def interrupted(self) -> None:
        """The database was away, and nobody could renew a lease: all have the time of one to come back."""
        self._judge_s = time.monotonic() + self._lease_s

    def step(self, database: Engine, ring: Ring) -> None:
        """Raises: SQLAlchemyError where the database cannot be used now."""
        if time.monotonic() >= self._judge_s:
            for turn in settle_orphans(database, finish=self._finish):
                if not _ring(ring, turn):
                    break
        fail_overdue(database)
        with database.begin() as conn:
            waiting = turn_queue.waiting(conn, for_s=QUEUED_TOO_LONG_S, limit=BATCH)
        stalled = {str(turn): RebuildQueue.INTERACTIVE for turn in waiting}
        for name in self._backlog.due(stalled, time.monotonic()):
            if not _ring(ring, TurnId(name)):
                break
            log.info("rang again for turn %s", name)
        self._forget(database)

    def _forget(self, database: Engine) -> None:
        if time.monotonic() < self._forget_s:
            return
        self._forget_s = time.monotonic() + FORGET_EVERY_S
        with database.begin() as conn:
            turn_chunks.forget_ended(conn)


def settle_orphans(database: Engine, *, finish: bool) -> list[TurnId]:
    """Those that are to be finished, which wait for a worker now; the others have ended.

    One transaction for each, so that one that cannot be settled now keeps no other waiting.
    """
    with database.begin() as conn:
        orphans = turns.orphaned(conn, BATCH)
    now = datetime.now(UTC)
    settled = [
        (
            orphan,
            _tried(database, orphan, lambda conn, one: orphan_flow.settle(conn, one, finish=finish, now=now)),
        )
        for orphan in orphans
    ]
    for orphan, waits in settled:
        if waits is not None:
            how = "waits for a worker" if waits else "is not open any more"
            log.info("turn %s, which nobody ran any more, %s", orphan.turn, how)
    return [orphan.turn for orphan, waits in settled if waits]


def fail_overdue(database: Engine) -> None:
    with database.begin() as conn:
        overdue = turn_queue.overdue(conn, BATCH)
    now = datetime.now(UTC)
    for turn in overdue:
        _tried(database, turn, lambda conn, one: orphan_flow.fail_overdue(conn, one, now))


def _tried(
    database: Engine, turn: OpenTurn, work: Callable[[Connection, OpenTurn], bool | None]
) -> bool | None:
    try:
        with database.begin() as conn:
            return work(conn, turn)
    except (EverturnError, DBAPIError) as error:
        log.warning("turn %s stays as it is: %s", turn.turn, error)
        return None


def _ring(ring: Ring, turn: TurnId) -> bool:
    """Whether the broker took it; if not, the next step rings again."""
    try:
        ring(turn)
    except Unavailable as error:
        log.warning("%s", error)
        return False
    return True
