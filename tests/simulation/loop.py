"""Virtual time: an event loop that never waits. Nothing of it depends on the machine."""

import asyncio
from asyncio import events, futures
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from sqlalchemy.util import greenlet_spawn


class Deadlock(Exception):
    """Nothing is left that could ever happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Where nothing is ready, its time moves to what is due next.

    asyncio's own loop looks for sockets, signals and other threads at each round, of which there are none here: a seed is
    some ten thousand rounds.
    """

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self._now_s = 0.0
        self._due: list[tuple[float, int, events.TimerHandle]] = []
        self._number = count()
        self.set_exception_handler(self._note)
        self.errors: list[str] = []
        """Of tasks that nobody looked at."""

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]  # as BaseEventLoop's, without its type variables
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]  # BaseEventLoop's
        return handle

    def call_later(  # type: ignore[override]  # as BaseEventLoop's, without its type variables
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as BaseEventLoop's, without its type variables
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        # Of two that are due at once the one that was asked for first comes first.
        heappush(self._due, (when, next(self._number), handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, function: Callable[..., Any], *args: Any
    ) -> "futures.Future[Any]":
        """In its turn, in a greenlet of the one thread that there is."""
        return self.create_task(greenlet_spawn(function, *args))

    def _run_once(self) -> None:
        due, ready = self._due, self._ready  # type: ignore[attr-defined]  # BaseEventLoop's
        while due and due[0][2].cancelled():
            heappop(due)
        if not ready:
            if not due:
                raise Deadlock
            self._now_s = max(self._now_s, due[0][0])
        while due and due[0][0] <= self._now_s:
            handle = heappop(due)[2]
            if not handle.cancelled():
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _timer_handle_cancelled(self, _handle: events.TimerHandle) -> None:
        """It is passed over when it is due."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _note(self, _loop: events.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
