"""Virtual time: an event loop that never waits, and what the product's modules find in the place of clock, threads and ids."""

import asyncio
import threading
import time
from asyncio import events, futures
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Self

from sqlalchemy.util import await_only, greenlet_spawn

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Deadlock(Exception):
    """Nothing is left that could ever happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Where nothing is ready, its time moves to what is due next. Nothing of it depends on the machine."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self._now_s = 0.0
        self._clock_resolution = 1e-6
        self._selector = self
        self.set_exception_handler(self._note)
        self.errors: list[str] = []
        """Of tasks that nobody looked at."""

    def time(self) -> float:
        return self._now_s

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise Deadlock
        self._now_s += timeout_s
        return []

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, function: Callable[..., Any], *args: Any
    ) -> "futures.Future[Any]":
        """In its turn, in a greenlet of the one thread that there is."""
        return self.create_task(greenlet_spawn(function, *args))

    def _process_events(self, _found: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _note(self, _loop: events.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


def running() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def is_elsewhere() -> bool:
    """Asked by a thread of no simulation: of a service, say, that other tests have running in this very process."""
    return threading.current_thread() is not threading.main_thread()


def monotonic() -> float:
    return time.monotonic() if is_elsewhere() else running().time()


def utc_now() -> datetime:
    return datetime.now(UTC) if is_elsewhere() else EPOCH + timedelta(seconds=running().time())


def new_id(prefix: str) -> str:
    return f"{prefix}{running().random.getrandbits(64):016x}"


def stored_id(real: Callable[[str], str], prefix: str) -> str:
    if is_elsewhere():
        return real(prefix)
    return f"{prefix}{running().random.getrandbits(128):032x}"


class Time:
    """In the place of the module `time`."""

    monotonic = staticmethod(monotonic)
    skew_ms = 0
    """Of the process that asks, where its clock is wrong."""

    @classmethod
    def time_ns(cls) -> int:
        return (int(utc_now().timestamp() * 1000) + cls.skew_ms) * 1_000_000

    @staticmethod
    def sleep(seconds: float) -> None:
        if is_elsewhere():
            time.sleep(seconds)
            return
        await_only(asyncio.sleep(seconds))


class Datetime(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Self:  # noqa: ARG003
        return utc_now()  # type: ignore[return-value]


class Event:
    """As `threading.Event`, for code that runs in a greenlet."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float) -> bool:
        async def waited() -> bool:
            try:
                await asyncio.wait_for(self._event.wait(), timeout)
            except TimeoutError:
                return False
            return True

        return bool(await_only(waited()))


class Thread:
    """As `threading.Thread`: a greenlet of its own, on the one loop."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        assert daemon
        self._work: Coroutine[Any, Any, None] = greenlet_spawn(target, *args)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)

    def join(self) -> None:
        assert self._task is not None
        await_only(asyncio.wait([self._task]))


class Threads:
    """In the place of the module `threading`."""

    Event = Event
    Thread = Thread
