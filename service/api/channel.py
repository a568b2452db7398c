"""What a running turn shows to those who wait for it: its newest state, and how its text was cut so far."""

import asyncio
from dataclasses import dataclass, replace

from service.domain.events import ItemId, TurnId, TurnStreamed
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


class Cuts:
    """The deltas of a stream, which are the same for every reader, and for whoever resumes it later.

    An attempt that dies after some of its text was cut is followed by another. As long as the text of one begins
    with that of the other only the rest is cut; where they part, the stream is lost and takes no more.
    """

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.announced: list[RevisionDigest] = []
        self.text = ""
        self.lost = False
        self._frozen = False

    def announce(self, revision: RevisionDigest) -> None:
        if not self.lost and not self._frozen:
            self.pieces.append(0)
            self.announced.append(revision)

    def add(self, text: str, *, final: bool = False) -> None:
        """Args: text: the whole of it so far."""
        if self.lost or (self._frozen and not final):
            return
        if text.startswith(self.text):
            if len(text) > len(self.text):
                self.pieces.append(len(text) - len(self.text))
                self.text = text
        elif final or not self.text.startswith(text):
            self.lost = True

    def freeze(self) -> None:
        """Only an accepted answer is added from now on: what is being recorded is what was sent."""
        self._frozen = True

    def as_event(self, turn: TurnId, item: ItemId, accepted: str | None) -> TurnStreamed:
        return TurnStreamed(
            turn=turn,
            item=item,
            pieces=tuple(self.pieces),
            announced=tuple(self.announced),
            lost=self.lost,
            text="" if self.text == accepted else self.text,
        )


class TurnChannel:
    """One writer, any number of readers, each at its own pace."""

    def __init__(self, view: View, *, cut: bool) -> None:
        """Args: cut: whether the text is streamed; if not, readers see it when it is accepted."""
        self.view = view
        self.cuts = Cuts() if cut else None
        self._moved = asyncio.Event()

    def note(self, note: str) -> None:
        if note != self.view.note:
            self._set(replace(self.view, note=note))

    def begin(self, attempt: int, revision: RevisionDigest, note: str) -> None:
        if self.cuts is not None and attempt > 1:
            self.cuts.announce(revision)
        self._set(replace(self.view, attempt=attempt, revision=revision, text="", note=note))

    def say(self, text: str) -> None:
        if self.cuts is not None:
            self.cuts.add(text)
        self._set(replace(self.view, text=text, note="answering"))

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
