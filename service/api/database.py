"""Runs the synchronous transactions of the flows for the asynchronous API."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self, TypeVar

from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.sql import Literal
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from service.domain.errors import VersionConflict
from service.domain.events import TenantId
from service.store.connection import ALONE, AUDITOR_ROLE, BEGIN_WITH, FLEET_ROLE, make_async_engine

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whose rows a transaction may see; the database holds it to that. Neither tenant nor role: nobody's."""

    tenant: TenantId | None = None
    role: str | None = None


ALL_TENANTS = Reach(role=FLEET_ROLE)
AUDIT_VIEWS = Reach(role=AUDITOR_ROLE)

_reach: ContextVar[Reach] = ContextVar("reach", default=Reach())  # noqa: B039 frozen


def reach_for(reach: Reach) -> None:
    """From here on in this request, and in the tasks it starts: set where its key is checked, and nowhere else."""
    _reach.set(reach)


LOOKS = 4
"""Connections for single statements: each is over in a fraction of what a transaction takes."""
TRIES = 5
PAUSE_S = 0.02
SOON_S = 5.0
"""A server that ends a session says so at once; after a host that said nothing for longer, whoever asked has waited enough."""
LONGEST_TRANSACTION_S = 30.0
"""What runs in the server ends by the server's own limits; this one is for a server that says nothing at all."""


class Database:
    def __init__(self, engine: AsyncEngine, looks: AsyncEngine | None = None) -> None:
        """Args: looks: for `look`, where that is asked for: connections that nobody else has, may read everything and change nothing."""
        self._engine = engine
        self._looks = looks

    @classmethod
    def at(cls, url: str, *, application_name: str, pool_size: int) -> Self:
        """With what it takes to look up whose a key is. Raises: InvalidInput: no such address."""
        return cls(
            make_async_engine(url, application_name=application_name, pool_size=pool_size),
            make_async_engine(
                url,
                application_name=application_name,
                pool_size=min(LOOKS, pool_size),
                role=FLEET_ROLE,
                read_only=True,
            ),
        )

    async def run(
        self,
        transaction: Callable[[Connection], Result],
        *,
        reach: Reach | None = None,
        within_s: float = LONGEST_TRANSACTION_S,
    ) -> Result:
        """Committed when this returns; one that lost a race, or its session before COMMIT, is run again from its beginning.

        `reach` is in place of that of the request's key. A try that is not over `within_s` loses its connection.

        Raises:
            VersionConflict: lost every time.
            OperationalError: the database cannot be reached, or said nothing for too long. What it had been told to
                commit may have been committed.
        """
        wanted = reach or _reach.get()
        return await _again(partial(self._run, transaction, wanted, within_s))

    async def look(self, read: Callable[[Connection], Result]) -> Result:
        """One statement over all tenants, in no transaction but its own: one round trip in place of three.

        It has connections for itself, on which nothing is ever set: no tenant can be left on them, or found there.

        Raises:
            OperationalError: as `run`.
        """
        assert self._looks is not None  # noqa: S101 made with what it is asked for
        return await _again(partial(greenlet_spawn, self._looked, self._looks, read))

    async def close(self) -> None:
        await self._engine.dispose()
        if self._looks is not None:
            await self._looks.dispose()

    async def _run(
        self, transaction: Callable[[Connection], Result], reach: Reach, within_s: float
    ) -> Result:
        return await greenlet_spawn(self._committed, transaction, limits(reach), within_s)

    def _committed(
        self, transaction: Callable[[Connection], Result], begin_with: tuple[str, ...], within_s: float
    ) -> Result:
        """In one piece: each crossing between asynchronous and synchronous code costs as much as a short statement."""
        with self._engine.sync_engine.connect() as conn, _watched(conn, for_s=within_s) as attempt:
            conn.execution_options(**{BEGIN_WITH: begin_with})
            with conn.begin():
                result = transaction(conn)
                attempt.commits = True
            return result

    @staticmethod
    def _looked(looks: AsyncEngine, read: Callable[[Connection], Result]) -> Result:
        with looks.sync_engine.connect() as conn, _watched(conn, for_s=LONGEST_TRANSACTION_S):
            conn.execution_options(**{ALONE: True})
            return read(conn)


class _NothingDone(Exception):
    """Its session ended before COMMIT was sent."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class _Attempt:
    commits: bool = False


@contextmanager
def _watched(conn: Connection, *, for_s: float) -> Iterator[_Attempt]:
    """The driver waits for a server without end, and cancelled it waits again; but a connection that breaks it notices.

    Raises: _NothingDone: from what broke it soon, and was not us.
    """
    attempt, loop = _Attempt(), asyncio.get_running_loop()
    begun = loop.time()
    timer = loop.call_at(begun + for_s, _sever, conn.connection.driver_connection)
    try:
        yield attempt
    except DBAPIError as error:
        if error.connection_invalidated and not attempt.commits and loop.time() < begun + min(for_s, SOON_S):
            raise _NothingDone(error) from error
        raise
    finally:
        timer.cancel()


async def _again(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """What left nothing behind, until it succeeds or has failed `TRIES` times. Raises: what it fails with then."""
    for number in range(1, TRIES):
        try:
            return await attempt()
        except (VersionConflict, _NothingDone):
            pass
        except DBAPIError as error:
            if not isinstance(error.orig, DeadlockDetected | SerializationFailure):
                raise
        await asyncio.sleep(PAUSE_S * number)
    try:
        return await attempt()
    except _NothingDone as nothing:
        raise nothing.error from nothing.error.orig


def _sever(driver: Any) -> None:
    if driver.closed:
        return
    with closing(socket.socket(fileno=os.dup(driver.fileno()))) as wire:
        wire.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1024)
def limits(reach: Reach) -> tuple[str, ...]:
    """Statements that hold a transaction to it until it ends."""
    if reach.role is not None:
        return (f"SET LOCAL ROLE {reach.role}",)
    if reach.tenant is not None:
        return (f"SELECT set_config('app.tenant', {Literal(reach.tenant).as_string()}, true)",)
    return ()


def limit(conn: Connection, reach: Reach) -> None:
    """Of a transaction that has begun already."""
    for statement in limits(reach):
        conn.exec_driver_sql(statement)
