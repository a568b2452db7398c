"""One look at the fleet for all turns that wait for it: they plan again when something has changed, one after the other."""

import asyncio
from logging import getLogger

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.api.database import ALL_TENANTS, Database
from service.store import fleet

log = getLogger(__name__)

LOOK_EVERY_S = 0.25
STAGGER_S = 0.01
"""Between two turns that are woken: planning reads the whole conversation, and there may be hundreds."""


class FleetWatch:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: fleet.Serving | None = None
        self._waiting: dict[asyncio.Event, None] = {}
        self._looking: asyncio.Task[None] | None = None

    async def change(self, *, at_most_s: float) -> None:
        """Returns when an engine or an alias has changed, and otherwise when the time is over."""
        changed = asyncio.Event()
        self._waiting[changed] = None
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(at_most_s):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            self._waiting.pop(changed, None)

    async def _look(self) -> None:
        try:
            while self._waiting:
                await self._look_once()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        try:
            seen = await self._database.run(fleet.serving, reach=ALL_TENANTS)
        except (DBAPIError, PoolTimeout) as error:
            log.warning("the fleet cannot be looked at now: %s", error)
            return
        if seen == self._seen:
            return
        self._seen = seen
        loop = asyncio.get_running_loop()
        for place, changed in enumerate(self._waiting):
            loop.call_later(place * STAGGER_S, changed.set)
