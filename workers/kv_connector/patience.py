"""Waits for a store only so long; and once that was in vain, it asks no more for a while."""

import errno
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")

WAIT_S = 1.0
"""The scheduler stands still meanwhile, and with it every request."""

PAUSE_S = 10.0
"""After a wait in vain; so that a store which hangs costs an engine a tenth of its time at most."""


class Patience:
    def __init__(self, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._late: Thread | None = None
        self._ask_again_at = 0.0

    def within(self, ask: Callable[[], Answer]) -> Answer:
        """In a thread of its own: a disk that hangs lets nobody go who waits for it.

        Raises:
            TimeoutError: it took longer than `wait_s`, or somebody found so less than `pause_s` ago.
            Exception: what `ask` raised.
        """
        late = self._late
        if late is not None and (late.is_alive() or time.monotonic() < self._ask_again_at):
            raise TimeoutError(errno.ETIMEDOUT, "the store did not answer a moment ago, and was not asked")
        answers: SimpleQueue[tuple[Answer | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((ask(), None))
            except BaseException as error:  # noqa: BLE001 raised again by whoever waits
                answers.put((None, error))

        asking = Thread(target=run, name="everturn-ask", daemon=True)
        asking.start()
        try:
            answer, error = answers.get(timeout=self._wait_s)
        except Empty:
            self._late, self._ask_again_at = asking, time.monotonic() + self._pause_s
            raise TimeoutError(
                errno.ETIMEDOUT, f"the store did not answer within {self._wait_s:g} s"
            ) from None
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]  # it is the answer wherever there is no error
