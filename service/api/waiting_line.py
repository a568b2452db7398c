"""Where a turn stands among those that wait for the same engines: one look at all of them for all that ask."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from logging import getLogger
from time import monotonic

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.api.database import ALL_TENANTS, Database
from service.domain.events import TurnId
from service.store.waiting import Waiting, WaitsFor, waiting_lines

log = getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_AGAIN_S = 0.1
"""For one that is not there yet: when engines go, hundreds come to wait in the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of a turn that waits."""

    before: int
    """How many of its alias were accepted before it, and wait."""
    new_before: int
    """Of them, those that have had no attempt: no more of these come before it."""
    waits_for: WaitsFor

    def note(self, why: str) -> str:
        turns = "turn is" if self.before == 1 else "turns are"
        return f"waiting: {why}; {self.before} {turns} before it"


class WaitingLine:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")
        self._places: dict[TurnId, Place] = {}

    async def find(self, turn: TurnId) -> Place | None:
        """None for one that is not known to wait."""
        async with self._looking:
            age_s = monotonic() - self._looked_s
            if age_s > (LOOK_EVERY_S if turn in self._places else LOOK_AGAIN_S):
                await self._look()
        return self._places.get(turn)

    async def _look(self) -> None:
        try:
            lines = await self._database.run(waiting_lines, reach=ALL_TENANTS)
        except (DBAPIError, PoolTimeout) as error:
            log.warning("the turns that wait cannot be counted now: %s", error)
            return
        self._places = {turn: place for line in lines.values() for turn, place in _places(line)}
        self._looked_s = monotonic()


def _places(line: Iterable[Waiting]) -> Iterator[tuple[TurnId, Place]]:
    new = 0
    for before, one in enumerate(line):
        yield one.turn, Place(before=before, new_before=new, waits_for=one.waits_for)
        new += not one.attempted
