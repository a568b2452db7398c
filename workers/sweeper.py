"""Brings back what fell: rings again for stalled rebuilds, and fails turns whose process is gone."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery.beat import Scheduler
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service import turn_flow
from service.domain.errors import EverturnError, Unavailable
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store import rebuilds, turns
from service.store.connection import make_engine
from workers.chores import Chores
from workers.tasks import WorkerApp

log = logging.getLogger(__name__)

PERIOD_S = 1.0
QUEUED_TOO_LONG_S = 3.0
FIRST_AGAIN_S = 2.0
LONGEST_AGAIN_S = 30.0
BATCH = 100


class SweepingScheduler(Scheduler):
    """A Celery beat that sweeps by itself.

    Sent as tasks, sweeps would wait behind long rebuilds, and would stop with the very broker whose failures they mend.
    """

    def setup_schedule(self) -> None:
        app = self.app
        if not isinstance(app, WorkerApp):
            raise TypeError("the sweeper belongs to the app of the workers")
        settings = app.settings
        self._database = make_engine(
            settings.database_url.get_secret_value(), application_name="everturn-sweeper", pool_size=1
        )
        self._doorbell = Doorbell(settings.broker_url.get_secret_value())
        self._backlog = Backlog()
        self._chores = Chores.of(settings)

    def tick(self, *_: Any, **__: Any) -> float:
        try:
            sweep(self._database, self._doorbell, self._backlog)
            self._chores.step(self._database, self._doorbell)
        except SQLAlchemyError as error:
            log.warning("the sweep has to wait for the database: %s", error)
        return PERIOD_S

    def close(self) -> None:
        super().close()
        self._doorbell.close()
        self._database.dispose()


@dataclass(slots=True)
class Backlog:
    """When to ring again for which rebuild: a worker that is away for an hour must not find a flood of messages."""

    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By rebuild: when next, and how long after that again; monotonic seconds."""

    def due(self, stalled: Mapping[str, RebuildQueue], now: float) -> list[str]:
        self.waits = {rebuild: wait for rebuild, wait in self.waits.items() if rebuild in stalled}
        due = [rebuild for rebuild in stalled if now >= self.waits.get(rebuild, (now, 0.0))[0]]
        for rebuild in due:
            again_s = self.waits.get(rebuild, (now, FIRST_AGAIN_S))[1]
            self.waits[rebuild] = (now + again_s, min(again_s * 2, LONGEST_AGAIN_S))
        return due


def sweep(database: Engine, doorbell: Doorbell, backlog: Backlog) -> None:
    """Raises: SQLAlchemyError where the database cannot be used now."""
    fail_orphans(database)
    with database.begin() as conn:
        stalled = dict(rebuilds.stalled(conn, queued_for_s=QUEUED_TOO_LONG_S, limit=BATCH))
    for rebuild in backlog.due(stalled, time.monotonic()):
        try:
            doorbell.ring(rebuild, stalled[rebuild])
        except Unavailable as error:
            log.warning("%s", error)
            return
        log.info("rang again for rebuild %s", rebuild)


def fail_orphans(database: Engine) -> None:
    """One transaction for each, so that one that cannot be failed now keeps no other waiting."""
    with database.begin() as conn:
        orphans = turns.orphaned(conn, BATCH)
    for orphan in orphans:
        try:
            with database.begin() as conn:
                turn_flow.fail_orphan(
                    conn, orphan.tenant, orphan.conversation, orphan.turn, datetime.now(UTC)
                )
        except (EverturnError, DBAPIError) as error:
            log.warning("turn %s stays open: %s", orphan.turn, error)
        else:
            log.info("failed turn %s, which nobody runs any more", orphan.turn)
