"""The doorbell: tells the workers, through the broker, that something waits for them; the rows are the truth."""

from celery import Celery
from kombu import Queue
from kombu.exceptions import KombuError, OperationalError

from service.domain.errors import Unavailable
from service.domain.events import TurnId
from service.domain.plan import RebuildQueue

REBUILD_TASK = "everturn.rebuild"
TURN_TASK = "everturn.turn"
CHECKPOINT_TASK = "everturn.checkpoint"

PATIENCE_S = 2.0
"""For each of connecting and publishing: a turn would rather decode without the rebuild than wait for a dead broker."""


def broker_queues() -> tuple[Queue, ...]:
    """Both ends must declare them alike. Brokers other than RabbitMQ ignore the arguments."""
    return tuple(Queue(name, queue_arguments={"x-queue-type": "quorum"}) for name in RebuildQueue)


class Doorbell:
    """Safe to use from several threads; a ring blocks for a few seconds at most."""

    def __init__(self, broker_url: str) -> None:
        self._celery = Celery("everturn-doorbell", broker=broker_url, set_as_current=False)
        self._celery.conf.update(
            task_queues=broker_queues(),
            task_default_queue=RebuildQueue.INTERACTIVE.value,
            task_create_missing_queues=False,
            task_serializer="json",
            task_ignore_result=True,
            broker_connection_timeout=PATIENCE_S,
            broker_transport_options={
                "max_retries": 0,
                "socket_connect_timeout": PATIENCE_S,
                "socket_timeout": PATIENCE_S,
                "confirm_publish": True,  # RabbitMQ: an unconfirmed message may be lost without an error
            },
        )

    def ring(self, rebuild: str, queue: RebuildQueue) -> None:
        """Raises:
        Unavailable: the broker did not take the message; the sweeper rings again for rows that stall.
        """
        self._send(REBUILD_TASK, [rebuild], queue, f"rebuild {rebuild}")

    def ring_turn(self, turn: TurnId) -> None:
        """Raises: Unavailable: as for a rebuild."""
        self._send(TURN_TASK, [turn], RebuildQueue.INTERACTIVE, f"turn {turn}")

    def call(self, task: str) -> None:
        """For what nobody waits for, and finds by itself what there is to do. Raises: Unavailable."""
        self._send(task, [], RebuildQueue.BACKGROUND, f"'{task}'")

    def _send(self, task: str, args: list[str], queue: RebuildQueue, what: str) -> None:
        try:
            self._celery.send_task(task, args=args, queue=queue.value, retry=False)
        except (KombuError, OperationalError, OSError) as error:
            raise Unavailable(f"The broker did not take {what}: {error}. Is it running?") from error

    def close(self) -> None:
        self._celery.close()
