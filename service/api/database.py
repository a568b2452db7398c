"""Runs the synchronous transactions of the flows for the asynchronous API."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from psycopg.errors import DeadlockDetected, SerializationFailure
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service.domain.errors import VersionConflict

Result = TypeVar("Result")

TRIES = 5
PAUSE_S = 0.02


class Database:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self, transaction: Callable[[Connection], Result]) -> Result:
        """Committed when this returns; one that lost a race is run again from its beginning.

        Raises:
            VersionConflict: lost every time.
        """
        for number in range(1, TRIES):
            try:
                return await self._run(transaction)
            except VersionConflict:
                await asyncio.sleep(PAUSE_S * number)
            except DBAPIError as error:
                if not isinstance(error.orig, DeadlockDetected | SerializationFailure):
                    raise
                await asyncio.sleep(PAUSE_S * number)
        return await self._run(transaction)

    async def close(self) -> None:
        await self._engine.dispose()

    async def _run(self, transaction: Callable[[Connection], Result]) -> Result:
        async with self._engine.begin() as connection:
            return await connection.run_sync(transaction)
