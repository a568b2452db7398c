"""The Celery app of the workers, a composition root: `celery --app workers.celery_app worker --beat`."""

import os
from typing import Any

from celery.signals import beat_embedded_init, worker_process_init, worker_process_shutdown

from service.domain.errors import InvalidInput
from service.domain.plan import RebuildQueue
from service.queue import broker_queues
from service.settings import Settings, read_settings
from workers.checkpoints import Schedule
from workers.pool_process import PoolProcess, end_with_parent
from workers.tasks import WorkerApp, register_tasks

FINISH_S = 30.0
"""From the soft limit, which fails the rebuild with a reason, to the hard one, which kills the process."""


def make_app(settings: Settings) -> WorkerApp:
    """Raises: InvalidInput: settings that do not fit together."""
    if settings.checkpoint_folder:
        Schedule.of(settings)
    app = WorkerApp(settings)
    longest_s = settings.rebuild_timeout_s + FINISH_S
    app.conf.update(
        task_queues=broker_queues(),
        task_default_queue=RebuildQueue.INTERACTIVE.value,
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # A message is done with when its row is; a killed process gives it back at once.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_soft_time_limit=settings.rebuild_timeout_s,
        task_time_limit=longest_s,
        worker_soft_shutdown_timeout=settings.shutdown_s,
        # After a lost connection the broker delivers again, and the second claim finds the first.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        beat_scheduler="workers.sweeper:SweepingScheduler",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            # Redis protocol: no process can hold a message longer; the sweeper has rung again long before.
            "visibility_timeout": longest_s * 2,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
        },
    )
    _hold_connections_per_process(app, settings)
    register_tasks(app)
    return app


def _hold_connections_per_process(app: WorkerApp, settings: Settings) -> None:
    main = os.getpid()

    def opened(**_: Any) -> None:
        end_with_parent(main)
        app.process = PoolProcess.open(settings)

    def closed(**_: Any) -> None:
        if app.process is not None:
            app.process.close()

    def beat_begins(**_: Any) -> None:
        end_with_parent(main)

    beat_embedded_init.connect(beat_begins, weak=False)
    worker_process_init.connect(opened, weak=False)
    worker_process_shutdown.connect(closed, weak=False)


def _started() -> WorkerApp:
    try:
        return make_app(read_settings())
    except InvalidInput as error:
        # Celery would show a traceback of any other error that this import raises.
        raise SystemExit(f"everturn: {error}") from error


app = _started()
