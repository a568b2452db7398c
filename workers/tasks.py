"""The names that messages carry, and what they start; a message holds an id, the row holds the rest."""

from typing import Any

from celery import Celery

from service.domain.errors import Internal
from service.queue import REBUILD_TASK
from service.settings import Settings
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild


class WorkerApp(Celery):
    process: PoolProcess | None = None
    """Of this very process; None in the worker's main process, which runs no task."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__("everturn", broker=settings.broker_url.get_secret_value(), **options)
        self.settings = settings


def register_tasks(app: WorkerApp) -> None:
    @app.task(name=REBUILD_TASK)
    def rebuild(rebuild_id: str) -> None:
        if app.process is None:
            raise Internal("Tasks run in pool processes: start the worker with --pool prefork.")
        run_rebuild(app.process, rebuild_id)
