"""What the product's modules find in the place of clock, threads and ids: those of the loop that runs."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from sqlalchemy.util import await_only, greenlet_spawn

from tests.simulation.loop import VirtualLoop

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MAIN = threading.main_thread().ident


def running() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def is_elsewhere() -> bool:
    """Asked by a thread of no simulation: of a service, say, that other tests have running in this very process."""
    return threading.get_ident() != MAIN


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
