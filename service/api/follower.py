"""Follows turns that other processes run, by what those store of them: once for all who read one here."""

import asyncio
from logging import getLogger
from time import monotonic

from service.api.channel import TurnChannel, View
from service.api.rebuild_looks import RebuildLooks, progress
from service.api.turn_job import STORAGE_TROUBLE, Failure, Tools
from service.api.waiting_line import WaitingLine
from service.api.why_waiting import waiting_note
from service.domain.cuts import Cuts, Retelling, item_of
from service.domain.events import TenantId, TurnId
from service.store import turn_chunks
from service.store.turn_chunks import Progress

log = getLogger(__name__)

LOOK_EVERY_S = 0.25
WHY_EVERY_S, WHY_AGAIN_S = 1.0, 3.0
"""Of one that says nothing: whether it waits, and what for; of one that has had an attempt, and mostly has it still, less often."""
UNREAD_S = 2.0
"""What nobody reads any more is followed no longer."""


class Follower:
    def __init__(self, tools: Tools) -> None:
        self._database = tools.database
        self._looks = RebuildLooks(tools.database)
        self._line = WaitingLine(tools.database)
        settings = tools.settings
        self._patience_s = settings.turn_wait_s + settings.rebuild_timeout_s + settings.engine_silence_s
        self._followed: dict[TurnId, tuple[TurnChannel, asyncio.Task[None]]] = {}

    def channel(self, tenant: TenantId, turn: TurnId) -> TurnChannel:
        if turn not in self._followed:
            channel = TurnChannel(View(item=item_of(turn), note="in another process"), cut=False)
            task = asyncio.create_task(self._follow(tenant, turn, channel))
            self._followed[turn] = (channel, task)
            task.add_done_callback(lambda _: self._followed.pop(turn, None))
        return self._followed[turn][0]

    async def until_ended(self, tenant: TenantId, turn: TurnId) -> Failure | None:
        """For a turn that ran here and is another's now."""
        channel = self.channel(tenant, turn)
        with channel.read():
            return (await channel.ended()).failure

    async def close(self) -> None:
        tasks = [task for _, task in self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, tenant: TenantId, turn: TurnId, channel: TurnChannel) -> None:
        failure: Failure | None = ("still_running", f"Response {turn} is still running; read it later.")
        try:
            if await self._until_closed(tenant, turn, channel):
                failure = None
        finally:
            channel.end(failure)

    async def _until_closed(self, tenant: TenantId, turn: TurnId, channel: TurnChannel) -> bool:
        """False where nothing came of it for so long, or nobody reads it any more."""
        retelling: Retelling | None = None
        moved_s = read_s = monotonic()
        ask_why_s = float("-inf")
        why: str | None = None
        while True:
            since = 0 if retelling is None else retelling.next
            seen = await self._look(tenant, turn, since)
            now = monotonic()
            if seen is not None:
                if seen.closed:
                    return True
                if retelling is None:
                    retelling = Retelling(channel, direct=not seen.background)
                    channel.cuts = Cuts() if seen.streamed else None
                retelling.tell(seen.chunks)
                if seen.chunks:
                    why = None
                elif now > ask_why_s:
                    why = await self._why(tenant, turn)
                    ask_why_s = now + (WHY_EVERY_S if why or not channel.view.attempt else WHY_AGAIN_S)
                channel.note(why or await self._note(seen, channel))
                if retelling.next > since or seen.waits or why is not None:
                    moved_s = now
            if channel.readers:
                read_s = now
            if now - moved_s > self._patience_s or now - read_s > UNREAD_S:
                return False
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, tenant: TenantId, turn: TurnId, since: int) -> Progress | None:
        """None where the database cannot say."""
        try:
            return await self._database.run(
                lambda conn: turn_chunks.progress(conn, tenant=tenant, turn=turn, since=since)
            )
        except STORAGE_TROUBLE as error:
            log.warning("turn %s cannot be followed now: %s", turn, error)
            return None

    async def _why(self, tenant: TenantId, turn: TurnId) -> str | None:
        """What it waits for, where it has no attempt under way."""
        try:
            return await waiting_note(self._database, self._line, tenant, turn)
        except STORAGE_TROUBLE as error:
            log.warning("what turn %s waits for cannot be told now: %s", turn, error)
            return None

    async def _note(self, seen: Progress, channel: TurnChannel) -> str:
        if seen.waits:
            return "waiting: for a worker"
        view = channel.view
        if not view.attempt:
            return "in another process"
        pinned = channel.rebuilds.get(view.attempt)
        if pinned is None or pinned.rebuild is None or view.text:
            return "answering"
        try:
            row = await self._looks.find(pinned.rebuild)
        except STORAGE_TROUBLE:
            return view.note
        return "answering" if row is None or row.finished_at is not None else progress(row)
