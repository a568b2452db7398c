"""What a running turn shows to those who wait for it: its newest state, and how its text was cut so far."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from service.domain.cuts import Cuts, Unkept
from service.domain.events import ItemId, TurnId, TurnPinned, TurnStreamed
from service.domain.revision import RevisionDigest

if TYPE_CHECKING:
    from service.conversation_flow import StoredTurn
    from service.domain.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`text` is that of the current attempt alone."""

    item: ItemId | None = None
    """Under which id the answer will be accepted."""
    attempt: int = 0
    revision: RevisionDigest | None = None
    text: str = ""
    note: str = "accepted"
    ended: bool = False
    failure: tuple[str, str] | None = None
    """Code and message, where the end could not be recorded."""


class TurnChannel:
    """One writer, any number of readers, each at its own pace."""

    def __init__(self, view: View, *, cut: bool) -> None:
        """Args: cut: whether the text is streamed; if not, readers see it when it is accepted."""
        self.view = view
        self.cuts = Cuts() if cut else None
        self.unkept: Unkept | None = None
        """Where other processes are to see it too."""
        self.answered: StoredTurn | None = None
        """As it was recorded with its answer, where this process did that: what would be read back."""
        self.readers = 0
        self.rebuilds: dict[int, TurnPinned] = {}
        """By attempt: those that wait for one, as far as they are known here."""
        self._plans_known: set[int] = set()
        """Of these attempts."""
        self._told = 0
        self._waiters: list[asyncio.Future[bool]] = []

    def note(self, note: str) -> None:
        if note != self.view.note:
            self._set(replace(self.view, note=note))

    def begin(
        self,
        attempt: int,
        revision: RevisionDigest,
        note: str = "answering",
        pinned: TurnPinned | None = None,
    ) -> None:
        """Args: pinned: None of an attempt that another process planned."""
        if pinned is not None:
            self._plans_known.add(attempt)
            if pinned.rebuild is not None:
                self.rebuilds[attempt] = pinned
        if self.cuts is not None and attempt > 1:
            self.cuts.announce(revision)
        if self.unkept is not None:
            self.unkept.begin(attempt, revision)
        self._told = 0
        self._set(replace(self.view, attempt=attempt, revision=revision, text="", note=note))

    @property
    def plans_known(self) -> bool:
        """Whether `rebuilds` has all that there are of the attempts that are shown here."""
        return self._plans_known.issuperset(range(1, self.view.attempt + 1))

    def learn_plans(self, turn: "Turn", attempt: int) -> None:
        """From the record, as it stood once that attempt was shown."""
        self.rebuilds |= {pinned.attempt: pinned for pinned in turn.rebuilds}
        self._plans_known |= set(range(1, max(attempt, turn.attempt) + 1))

    def say(self, text: str) -> None:
        """What has not been stored for so long that it could not be told apart later is sent with what follows it."""
        if self.unkept is None or not self.unkept.full:
            if self.unkept is not None and len(text) > self._told:
                self.unkept.say(text[self._told :])
            if self.cuts is not None:
                self.cuts.add(text)
            self._told = len(text)
        self._set(replace(self.view, text=text, note="answering"))

    def take_over(self) -> None:
        if self.cuts is not None:
            self.cuts.take_over()

    def record(self, turn: TurnId, accepted: str | None = None) -> TurnStreamed | None:
        """What is to be stored of the stream; `accepted` is the answer, where there is one."""
        if self.cuts is None or self.view.item is None:
            return None
        self.cuts.freeze()
        if accepted is not None:
            self.cuts.add(accepted, final=True)
        return self.cuts.as_event(turn, self.view.item, accepted)

    def end(self, failure: tuple[str, str] | None = None) -> None:
        self._set(replace(self.view, ended=True, failure=failure))

    async def moved(self, seen: View, timeout_s: float | None) -> bool:
        """Waits until there is more to see than `seen`; False where nothing came in time."""
        if self.view is not seen:
            return True
        # A future and a timer: an event, a timeout or a task for each word of each stream cost more than its JSON.
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _over, waiter, False)
        self._waiters.append(waiter)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def ended(self) -> View:
        while not self.view.ended:
            await self.moved(self.view, None)
        return self.view

    @contextmanager
    def read(self) -> Iterator[None]:
        """While somebody waits for what comes."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    def _set(self, view: View) -> None:
        self.view = view
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _over(waiter, True)


def _over(waiter: "asyncio.Future[bool]", moved: bool) -> None:
    if not waiter.done():
        waiter.set_result(moved)
