"""A transfer's hold on the engine's KV blocks: until it ends, or until the engine takes them back because the store hangs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


class GivenUp(Exception):
    """The blocks are the transfer's no longer: it may neither write into them nor copy them."""

    def __init__(self) -> None:
        super().__init__("the store did not answer in time")


class Hold:
    """Taken by a transfer's threads around each copy; given up by whoever waits for the transfer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._touching = 0
        self._given_up = False
        self._moved_at: float | None = None

    def begin(self) -> None:
        """Raises: GivenUp."""
        with self._lock:
            self._require()
            self._moved_at = self._clock()

    @contextmanager
    def touching(self) -> Iterator[None]:
        """Raises: GivenUp."""
        with self._lock:
            self._require()
            self._touching += 1
        try:
            yield
        finally:
            with self._lock:
                self._touching -= 1
                self._moved_at = self._clock()

    def require(self) -> None:
        """Raises: GivenUp."""
        with self._lock:
            self._require()

    def give_up(self) -> bool:
        """False where a copy is under way, which is memory alone and ends: ask again."""
        with self._lock:
            self._given_up = self._given_up or not self._touching
            return self._given_up

    def still_since(self) -> float | None:
        """When it last got on; None before it began."""
        with self._lock:
            return self._moved_at

    def _require(self) -> None:
        if self._given_up:
            raise GivenUp
