"""Keeps the turns of this process its own: renews their leases, and stores what they have said, for all of them at once."""

import asyncio
from collections.abc import Callable
from functools import partial
from logging import getLogger

from sqlalchemy import Connection

from service.api.database import ALL_TENANTS, Database
from service.api.turn_job import STORAGE_TROUBLE, Job
from service.domain.events import TurnId
from service.store import turn_chunks, turn_queue
from service.store.turn_chunks import Said

log = getLogger(__name__)

PACE_S = 0.3
"""Between two looks at what there is to store. What is over sooner is never stored."""
RENEWALS_PER_LEASE = 3


class Pulse:
    def __init__(self, database: Database, *, owner: str, lease_s: float) -> None:
        self._database = database
        self._owner = owner
        self._lease_s = lease_s
        self._jobs: dict[TurnId, tuple[Job, Callable[[], None]]] = {}
        self._young: set[TurnId] = set()
        self._beats: tuple[asyncio.Task[None], ...] = ()

    def add(self, job: Job, *, lost: Callable[[], None]) -> None:
        """Args: lost: called once the turn is another's: what is done here could not be accepted any more."""
        self._jobs[job.turn] = (job, lost)
        self._young.add(job.turn)
        if not self._beats:
            self._beats = (asyncio.create_task(self._keep()), asyncio.create_task(self._renew()))

    def remove(self, turn: TurnId) -> None:
        self._jobs.pop(turn, None)
        self._young.discard(turn)

    async def store(self) -> None:
        """What was said and is not stored yet, of all turns."""
        self._young.clear()
        await self._store()

    async def _store(self) -> None:
        said = [
            Said(tenant=job.tenant, turn=job.turn, chunk=chunk)
            for job, _ in self._jobs.values()
            if job.channel.unkept is not None and job.turn not in self._young
            for chunk in job.channel.unkept.chunks()
        ]
        self._young.clear()
        if not said:
            return
        kept = await self._database.run(
            lambda conn: turn_chunks.keep(conn, said, owner=self._owner), reach=ALL_TENANTS
        )
        for one in said:
            found = self._jobs.get(one.turn)
            if one.turn in kept and found is not None and found[0].channel.unkept is not None:
                found[0].channel.unkept.kept([one.chunk.number])

    async def close(self) -> None:
        for beat in self._beats:
            beat.cancel()
        await asyncio.gather(*self._beats, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(PACE_S)
            try:
                await self._store()
            except STORAGE_TROUBLE as error:
                log.warning("what turns have said so far cannot be stored now: %s", error)

    def _renewed(self, mine: set[TurnId], conn: Connection) -> set[TurnId]:
        return turn_queue.renew(conn, mine, owner=self._owner, lease_s=self._lease_s)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_PER_LEASE)
            mine = set(self._jobs)
            if not mine:
                continue
            try:
                kept = await self._database.run(partial(self._renewed, mine), reach=ALL_TENANTS)
            except STORAGE_TROUBLE as error:
                log.warning("the leases of %d turns could not be renewed: %s", len(mine), error)
                continue
            for turn in mine - kept:
                if turn in self._jobs:
                    self._jobs[turn][1]()
