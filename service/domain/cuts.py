"""How the line of a stream (`telling`) is cut: the same for every reader in every process, and for whoever resumes it later."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from service.domain.events import ItemId, TurnId, TurnStreamed
from service.domain.revision import RevisionDigest
from service.domain.telling import words

TAKEN_OVER = -1
"""Among the pieces: from here on another process told the rest. What the first had sent beyond is not known."""
NUMBERS_APART = 1000
"""Of the events before and after that: so that a reader's last number says which of them it has."""
MOST_UNKEPT = 900
"""Deltas that may be sent and not yet stored: well below it."""


def item_of(turn: TurnId) -> ItemId:
    """Under which id its answer is accepted, whichever process gives it."""
    return ItemId("msg_" + turn.removeprefix("resp_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one attempt said between two looks: stored while the turn runs, and gone when it has ended."""

    number: int
    """From 0 within the turn."""
    claim: int
    """Of the process that said it; 0 for the one that accepted the turn."""
    attempt: int
    revision: RevisionDigest
    pieces: tuple[int, ...]
    """Characters of each delta. Nothing: the attempt began."""
    text: str


class Cuts:
    """The deltas of a stream.

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

    def take_over(self) -> None:
        if not self.lost and not self._frozen:
            self.pieces.append(TAKEN_OVER)

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


class Listener(Protocol):
    def begin(self, attempt: int, revision: RevisionDigest) -> None: ...

    def say(self, text: str) -> None:
        """Args: text: of this attempt, the whole so far."""

    def take_over(self) -> None: ...


class Retelling:
    """Tells a listener what was said, from the chunks in their order: it then knows what whoever said it knew."""

    def __init__(self, listener: Listener, *, direct: bool) -> None:
        """Args: direct: whether the process that accepted the turn ran it, and so had readers before it stored anything."""
        self._listener = listener
        self._direct = direct
        self._attempt = 0
        self._text = ""
        self.next = 0
        """Number of the first chunk that was not told yet."""

    def tell(self, chunks: Iterable[Chunk]) -> None:
        """As far as they follow each other: after one that is missing nothing is known."""
        for chunk in chunks:
            if chunk.number != self.next:
                return
            self.next += 1
            if self._direct and chunk.claim > 0:
                self.take_over()
            if chunk.attempt != self._attempt:
                self._attempt, self._text = chunk.attempt, ""
                self._listener.begin(chunk.attempt, chunk.revision)
            self._say(chunk)

    def take_over(self) -> None:
        """Once: whoever goes on after that has no readers of its own."""
        if self._direct:
            self._direct = False
            self._listener.take_over()

    def _say(self, chunk: Chunk) -> None:
        place = 0
        for piece in chunk.pieces:
            self._text += chunk.text[place : place + piece]
            place += piece
            self._listener.say(self._text)


class Told:
    """A listener that keeps what is evidence of a turn that nobody runs any more."""

    def __init__(self) -> None:
        self.cuts = Cuts()
        self._line = ""

    @property
    def text(self) -> str:
        """What the last attempt alone said."""
        return words(self._line)

    def begin(self, attempt: int, revision: RevisionDigest) -> None:
        self._line = ""
        if attempt > 1:
            self.cuts.announce(revision)

    def say(self, text: str) -> None:
        self._line = text
        self.cuts.add(text)

    def take_over(self) -> None:
        self.cuts.take_over()


class Unkept:
    """What a running turn has said and nobody has stored yet."""

    def __init__(self, *, claim: int = 0, number: int = 0) -> None:
        self._claim = claim
        self._number = number
        self._closed: list[Chunk] = []
        self._attempt = 0
        self._revision = RevisionDigest("")
        self._begun = False
        self._pieces: list[int] = []
        self._parts: list[str] = []

    def begin(self, attempt: int, revision: RevisionDigest) -> None:
        self._close()
        self._attempt, self._revision, self._begun = attempt, revision, True

    def say(self, more: str) -> None:
        self._pieces.append(len(more))
        self._parts.append(more)

    @property
    def full(self) -> bool:
        return len(self._pieces) + sum(len(chunk.pieces) for chunk in self._closed) >= MOST_UNKEPT

    def chunks(self) -> tuple[Chunk, ...]:
        """To be stored; what is said from now on goes into a later one."""
        self._close()
        return tuple(self._closed)

    def kept(self, numbers: Iterable[int]) -> None:
        stored = set(numbers)
        self._closed = [chunk for chunk in self._closed if chunk.number not in stored]

    def _close(self) -> None:
        if not self._begun and not self._pieces:
            return
        chunk = Chunk(
            number=self._number,
            claim=self._claim,
            attempt=self._attempt,
            revision=self._revision,
            pieces=tuple(self._pieces),
            text="".join(self._parts),
        )
        self._closed.append(chunk)
        self._number += 1
        self._begun, self._pieces, self._parts = False, [], []
