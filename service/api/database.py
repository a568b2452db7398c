"""Runs the synchronous transactions of the flows for the asynchronous API."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from psycopg.errors import DeadlockDetected, SerializationFailure
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service.domain.errors import VersionConflict
from service.domain.events import TenantId
from service.store.connection import AUDITOR_ROLE, FLEET_ROLE

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


TRIES = 5
PAUSE_S = 0.02


class Database:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self, transaction: Callable[[Connection], Result], *, reach: Reach | None = None) -> Result:
        """Committed when this returns; one that lost a race is run again from its beginning.

        `reach` is in place of that of the request's key.

        Raises:
            VersionConflict: lost every time.
        """
        wanted = reach or _reach.get()
        for number in range(1, TRIES):
            try:
                return await self._run(transaction, wanted)
            except VersionConflict:
                await asyncio.sleep(PAUSE_S * number)
            except DBAPIError as error:
                if not isinstance(error.orig, DeadlockDetected | SerializationFailure):
                    raise
                await asyncio.sleep(PAUSE_S * number)
        return await self._run(transaction, wanted)

    async def close(self) -> None:
        await self._engine.dispose()

    async def _run(self, transaction: Callable[[Connection], Result], reach: Reach) -> Result:
        def limited(conn: Connection) -> Result:
            limit(conn, reach)
            return transaction(conn)

        async with self._engine.begin() as connection:
            return await connection.run_sync(limited)


def limit(conn: Connection, reach: Reach) -> None:
    """Until the transaction ends."""
    if reach.role is not None:
        conn.exec_driver_sql(f"SET LOCAL ROLE {reach.role}")
    elif reach.tenant is not None:
        conn.exec_driver_sql("SELECT set_config('app.tenant', %s, true)", (reach.tenant,))
