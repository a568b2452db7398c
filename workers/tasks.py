"""The names that messages carry, and what they start; a message holds an id, the row holds the rest."""

from datetime import UTC, datetime
from typing import Any

from celery import Celery

from service.domain.errors import Internal
from service.queue import CHECKPOINT_TASK, REBUILD_TASK, TURN_TASK
from service.settings import Settings
from workers.checkpoints import Schedule, write_checkpoint
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild
from workers.turn_work import run_turn

LONGEST_CHECKPOINT_S = 3600
LONGEST_TURN_S = 6 * 3600
"""A turn ends by its own limits, long before; this one is for a process that does not."""


class WorkerApp(Celery):
    process: PoolProcess | None = None
    """Of this very process; None in the worker's main process, which runs no task."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__("everturn", broker=settings.broker_url.get_secret_value(), **options)
        self.settings = settings


def register_tasks(app: WorkerApp) -> None:
    @app.task(name=REBUILD_TASK)
    def rebuild(rebuild_id: str) -> None:
        run_rebuild(_process(app), rebuild_id)

    # Done with when its row is somebody's: what becomes of that one the sweeper sees by its lease, and no message knows.
    @app.task(
        name=TURN_TASK,
        acks_late=False,
        soft_time_limit=LONGEST_TURN_S,
        time_limit=LONGEST_TURN_S + 60,
    )
    def turn(turn_id: str) -> None:
        run_turn(_process(app), turn_id)

    # Not given back by a broker that finds it long: the beat asks again for one that was not written.
    @app.task(
        name=CHECKPOINT_TASK,
        acks_late=False,
        soft_time_limit=LONGEST_CHECKPOINT_S,
        time_limit=LONGEST_CHECKPOINT_S + 60,
    )
    def checkpoint() -> None:
        write_checkpoint(_process(app).database, Schedule.of(app.settings), datetime.now(UTC))


def _process(app: WorkerApp) -> PoolProcess:
    if app.process is None:
        raise Internal("Tasks run in pool processes: start the worker with --pool prefork.")
    return app.process
