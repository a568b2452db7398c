"""A process of the simulation: it can be killed and stopped, and acts on the world through its doors only."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.util import await_only

from service.api.database import Database, Reach
from tests.simulation.faults import Faults, Moment, Verdict
from tests.simulation.tables import Session, Tables

Result = TypeVar("Result")


@dataclass(slots=True)
class Process:
    name: str
    kind: str
    """Of the actor that it runs."""
    alive: bool = True
    over: bool = False
    """The run is: whoever still waits is let go."""
    stopped_until_s: float = 0.0
    died: asyncio.Event = field(default_factory=asyncio.Event)
    grave: asyncio.Event = field(default_factory=asyncio.Event)
    """Never set: what the dead wait for."""

    def kill(self) -> None:
        self.alive = False
        self.died.set()

    def free_at(self, now_s: float) -> bool:
        return self.alive and now_s >= self.stopped_until_s

    async def gate(self) -> None:
        """Passed by whoever is alive and not stopped."""
        loop = asyncio.get_running_loop()
        while self.alive and loop.time() < self.stopped_until_s:  # noqa: ASYNC110 of virtual time
            await asyncio.sleep(self.stopped_until_s - loop.time())
        if not self.alive:
            if self.over:
                raise asyncio.CancelledError
            await self.grave.wait()


@dataclass(slots=True)
class Server:
    """The database's: reached by all processes, away at times, slow at times."""

    tables: Tables
    faults: Faults
    away_until_s: float = 0.0
    slow_s: float = 0.0
    commits: int = 0
    watchers: list[Callable[[Process, Session], None]] = field(default_factory=list)
    """Called after each commit."""

    def commit(self, process: Process, session: Session) -> Verdict:
        """The one moment at which a transaction happens, or not."""
        names = [*dict.fromkeys(session.calls), *dict.fromkeys(event.name for event in session.appended)]
        names = names or ["a transaction that does nothing"]
        verdict = self.faults.meet(process, names, Moment.BEFORE)
        if verdict is not Verdict.GO_ON:
            session.roll_back()
            return verdict
        self.commits += 1
        for watcher in self.watchers:
            watcher(process, session)
        return self.faults.meet(process, names, Moment.AFTER)

    async def reach(self, process: Process) -> None:
        """There and back again are one wait; what a transaction does to who asks for it comes when it is done."""
        now_s = self.faults.now_s
        if not process.free_at(now_s()):
            await process.gate()
        await asyncio.sleep(self.faults.latency_s() * 2 + self.slow_s)
        if not process.free_at(now_s()):
            await process.gate()
        if now_s() < self.away_until_s:
            raise gone("the server is away")

    async def leave(self, process: Process, session: Session, verdict: Verdict) -> None:
        """What it has written others may see before the one who wrote it knows."""
        if verdict is Verdict.LOSE:
            await asyncio.sleep(self.faults.latency_s())
            await process.gate()
            raise gone("the connection broke")
        if session.has_written:
            await process.gate()
            await asyncio.sleep(self.faults.latency_s())
        if not process.free_at(self.faults.now_s()):
            await process.gate()


class AsyncDatabase(Database):
    """The service's own, with its retries, on the simulated server."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process

    async def _run(self, transaction: Callable[[Any], Result], _reach: Reach, _within_s: float) -> Result:
        await self._server.reach(self._process)
        session = Session(self._server.tables)
        try:
            result = transaction(session)
        except BaseException:
            session.roll_back()
            raise
        await self._server.leave(self._process, session, self._server.commit(self._process, session))
        return result


class SyncDatabase:
    """In the place of an engine of SQLAlchemy, for code that runs in a greenlet."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process

    @contextmanager
    def begin(self) -> Iterator[Session]:
        await_only(self._server.reach(self._process))
        session = Session(self._server.tables)
        try:
            yield session
        except BaseException:
            session.roll_back()
            raise
        await_only(self._server.leave(self._process, session, self._server.commit(self._process, session)))


def gone(why: str) -> OperationalError:
    return OperationalError("COMMIT", {}, Exception(why))
