"""Several blocks of one transfer at a time: reading, hashing and copying all let go of the interpreter."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

Item = TypeVar("Item")


class Lanes:
    def __init__(self, name: str, *, width: int) -> None:
        self._width = width
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)

    def each(self, items: Iterable[Item], lane: Callable[[Iterable[Item]], None]) -> None:
        """Runs `lane` in several threads, the caller's own among them, over shared items; the first error stops all.

        Raises:
            Exception: what `lane` raised first.
        """
        shared = _Shared(items)

        def run() -> None:
            try:
                lane(shared)
            except BaseException as error:  # noqa: BLE001 raised again by the caller
                shared.fail(error)

        others = [self._threads.submit(run) for _ in range(self._width - 1)]
        run()
        for other in others:
            other.result()
        if shared.error is not None:
            raise shared.error

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True)


class _Shared(Iterable[Item]):
    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._lock = Lock()
        self.error: BaseException | None = None

    def __iter__(self) -> "_Shared[Item]":
        return self

    def __next__(self) -> Item:
        with self._lock:
            if self.error is not None:
                raise StopIteration
            return next(self._items)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
