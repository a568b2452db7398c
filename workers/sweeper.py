"""Brings back what fell: rings again for rebuilds that stall, and sees to turns that nobody runs."""

import logging
import time
from typing import Any

from celery.beat import Scheduler
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.domain.errors import Unavailable
from service.queue import Doorbell
from service.store import rebuilds
from service.store.connection import make_engine
from workers.backlog import Backlog
from workers.chores import Chores
from workers.tasks import WorkerApp
from workers.turn_sweep import TurnSweep

log = logging.getLogger(__name__)

PERIOD_S = 1.0
QUEUED_TOO_LONG_S = 3.0
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
        self._turns = TurnSweep(settings)
        self._chores = Chores.of(settings)

    def tick(self, *_: Any, **__: Any) -> float:
        try:
            self._turns.step(self._database, self._doorbell.ring_turn)
            sweep(self._database, self._doorbell, self._backlog)
            self._chores.step(self._database, self._doorbell)
        except SQLAlchemyError as error:
            log.warning("the sweep has to wait for the database: %s", error)
            self._turns.interrupted()
        return PERIOD_S

    def close(self) -> None:
        super().close()
        self._doorbell.close()
        self._database.dispose()


def sweep(database: Engine, doorbell: Doorbell, backlog: Backlog) -> None:
    """Raises: SQLAlchemyError where the database cannot be used now."""
    with database.begin() as conn:
        stalled = dict(rebuilds.stalled(conn, queued_for_s=QUEUED_TOO_LONG_S, limit=BATCH))
    for rebuild in backlog.due(stalled, time.monotonic()):
        try:
            doorbell.ring(rebuild, stalled[rebuild])
        except Unavailable as error:
            log.warning("%s", error)
            return
        log.info("rang again for rebuild %s", rebuild)
