"""What a running turn shows to those who wait for it: its newest state, never a queue that could grow."""

import asyncio
from dataclasses import dataclass, replace

from service.domain.events import ItemId
from service.domain.revision import RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`text` is that of the current attempt alone."""

    item: ItemId | None = None
    """Under which id the answer will be accepted; None where another process runs the turn."""
    attempt: int = 0
    revision: RevisionDigest | None = None
    text: str = ""
    note: str = "accepted"
    ended: bool = False
    failure: tuple[str, str] | None = None
    """Code and message, where the end could not be recorded."""


class TurnChannel:
    """One writer, any number of readers, each at its own pace."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._moved = asyncio.Event()

    def note(self, note: str) -> None:
        if note != self.view.note:
            self._set(replace(self.view, note=note))

    def begin(self, attempt: int, revision: RevisionDigest, note: str) -> None:
        self._set(replace(self.view, attempt=attempt, revision=revision, text="", note=note))

    def say(self, text: str) -> None:
        self._set(replace(self.view, text=text, note="answering"))

    def end(self, failure: tuple[str, str] | None = None) -> None:
        self._set(replace(self.view, ended=True, failure=failure))

    async def moved(self, seen: View, timeout_s: float | None) -> bool:
        """Waits until there is more to see than `seen`; False where nothing came in time."""
        if self.view is not seen:
            return True
        try:
            await asyncio.wait_for(self._moved.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def ended(self) -> View:
        while not self.view.ended:
            await self.moved(self.view, None)
        return self.view

    def _set(self, view: View) -> None:
        self.view = view
        self._moved.set()
        self._moved = asyncio.Event()
