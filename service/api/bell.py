"""Rings the workers' doorbell from threads of its own, so that a broker that does not answer holds up nobody."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger

from service.api.metrics import Metrics
from service.domain.errors import Unavailable

log = getLogger(__name__)

THREADS = 4
"""Not asyncio's, which the look-ups of names need."""


class Bell:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ring")
        self._rings: set[asyncio.Task[None]] = set()

    def ring(self, call: Callable[[], None], what: str) -> "asyncio.Task[None]":
        """Args: call: raises Unavailable where the broker does not take it; then the sweeper rings later."""
        task = asyncio.create_task(self._ring(call, what))
        self._rings.add(task)
        task.add_done_callback(self._rings.discard)
        return task

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ring(self, call: Callable[[], None], what: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except Unavailable as error:
            self._metrics.doorbell_failures.inc()
            log.warning("%s waits for the sweeper: %s", what, error)
