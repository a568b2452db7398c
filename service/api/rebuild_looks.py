"""One look at the rows of all rebuilds that turns wait for in this process, for whoever asks within a moment."""

import asyncio
from collections.abc import Mapping

from service.api.database import ALL_TENANTS, Database
from service.store import rebuild_progress
from service.store.rebuilds import Rebuild

GATHER_S = 0.01
"""Hundreds that look often would otherwise keep the database busy with nothing else."""


def progress(row: Rebuild) -> str:
    """For the comments of a stream."""
    return f"rebuilding: {row.tokens_done} of {row.tokens_total} tokens"


class RebuildLooks:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted: set[str] = set()
        self._next: asyncio.Task[Mapping[str, Rebuild]] | None = None

    async def find(self, rebuild: str) -> Rebuild | None:
        """As it stands once this was called. Raises: what a transaction does, to all who share it."""
        self._wanted.add(rebuild)
        if self._next is None:
            self._next = asyncio.create_task(self._look())
            self._next.add_done_callback(_looked_at)
        # Who is cancelled takes no look away from the others.
        found = await asyncio.shield(self._next)
        return found.get(rebuild)

    async def _look(self) -> Mapping[str, Rebuild]:
        await asyncio.sleep(GATHER_S)
        wanted, self._wanted, self._next = self._wanted, set(), None
        return await self._database.run(lambda conn: rebuild_progress.look(conn, wanted), reach=ALL_TENANTS)


def _looked_at(look: asyncio.Task[Mapping[str, Rebuild]]) -> None:
    """Whoever asked may be gone, and asyncio would complain of an error that nobody saw."""
    if not look.cancelled():
        look.exception()
