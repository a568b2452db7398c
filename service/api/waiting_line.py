"""Where a turn stands among those that wait for the same engines: one look at all of them for all that ask."""

import asyncio
from logging import getLogger
from time import monotonic

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.api.database import ALL_TENANTS, Database
from service.domain.events import TurnId
from service.store.waiting import waiting_lines

log = getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_AGAIN_S = 0.1
"""For one that is not there yet: when engines go, hundreds come to wait in the same moment."""


class WaitingLine:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")
        self._before: dict[TurnId, int] = {}

    async def before(self, turn: TurnId) -> int | None:
        """How many of its alias wait since before it; None for one that is not known to wait."""
        async with self._looking:
            age_s = monotonic() - self._looked_s
            if age_s > (LOOK_EVERY_S if turn in self._before else LOOK_AGAIN_S):
                await self._look()
        return self._before.get(turn)

    async def _look(self) -> None:
        try:
            lines = await self._database.run(waiting_lines, reach=ALL_TENANTS)
        except (DBAPIError, PoolTimeout) as error:
            log.warning("the turns that wait cannot be counted now: %s", error)
            return
        self._before = {turn: place for line in lines.values() for place, turn in enumerate(line)}
        self._looked_s = monotonic()
