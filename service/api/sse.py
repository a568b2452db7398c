"""A turn as OpenAI's stream of events, in their order and numbered: live, and again from any number on.

The events of a stream follow from the turn as it is stored and from how the line of its answer (`telling`) was cut (`turn.streamed`), so a
reader who comes back is sent what the first one would have been. What only a process that died knew of is gone. Where
the turn ended with it, the event that ends the stream comes next, under the number after the reader's last. Where another
process took over, the numbers go on much higher (`TAKEN_OVER`), and a reader who has more than was stored is sent no more
deltas, but the events that end the stream, which have the whole text.

When an attempt dies after some of its text was sent, and the next one has other words, the stream ends with
`response.failed`, code `attempt_lost`, while the turn goes on: `GET /v1/responses/{id}` has the accepted answer, and who streams it from
its beginning is told it under numbers much higher than the lost stream had, so that no words of both can meet. A
further attempt is announced by our own event `everturn.attempt`, and the rebuild that one waits for by `everturn.rebuild`,
before anything of its answer.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from sys import maxsize
from typing import TYPE_CHECKING, Any

from service.api import item_events
from service.api.channel import TurnChannel, View
from service.api.item_events import UNTIL_THE_END, Told
from service.api.response_object import in_background, opening_object, response_object, scored_of, status_of
from service.conversation_flow import StoredTurn
from service.domain.conversation import Item
from service.domain.cuts import NUMBERS_APART, TAKEN_OVER
from service.domain.events import ItemId, Role, TurnCompleted, TurnId, TurnPinned, TurnScored, TurnStreamed
from service.domain.items import ItemKind
from service.domain.revision import RevisionDigest
from service.domain.telling import MARK, Begun, Ids, Reader, line_of, plain
from service.domain.turn import Turn

if TYPE_CHECKING:
    from service.domain.head import LastAnswer

ATTEMPT_LOST = (
    "The attempt that this text came from was lost, and the next one answers in other words. "
    "The turn goes on: GET /v1/responses/{} will have its answer."
)
UNEXPLAINED = ("internal_error", "The turn ended without a result.")


async def turn_events(
    channel: TurnChannel,
    load: Callable[[], Awaitable[StoredTurn]],
    heartbeat_s: float,
    after: int | None = None,
) -> AsyncIterator[str]:
    """Args:
    load: reads the turn as it is stored now.
    after: the number of the last event that the reader has; only later ones are sent.
    """
    writer = _Writer(after)
    # A stream that was lost before its first reader came has nothing to keep to: this one gets the answer.
    lost: bool | None = None
    for event in writer.opening(await load()):
        yield event
    view, cuts = None, None
    while view is None or not (view.ended or (cuts is not None and cuts.lost)):
        if view is not None and not await channel.moved(view, heartbeat_s):
            yield f": response.in_progress {json.dumps(view.note)}\n\n"
            continue
        await _know_plans(channel, load)
        view, cuts = channel.view, channel.cuts
        if lost is None and cuts is not None:
            lost = cuts.lost and after is None
        cuts = None if lost else cuts
        for event in writer.begun(view.attempt, channel.rebuilds):
            yield event
        if cuts is not None and view.item is not None:
            for event in writer.cut(cuts.pieces, cuts.announced, cuts.text, view.item):
                yield event
    stored = await load()
    if writer.is_ahead_of(stored):
        writer = _Writer(writer.last)
        writer.pass_over(stored)
    for event in writer.ending(stored, channel, view):
        yield event


async def _know_plans(channel: TurnChannel, load: Callable[[], Awaitable[StoredTurn]]) -> None:
    """The record is asked for those of attempts that another process planned, or that nobody was told of."""
    while not channel.plans_known:
        attempt = channel.view.attempt
        channel.learn_plans((await load()).turn, attempt)


class _Writer:
    """Keeps what one reader was sent, or had before it came back."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._number = 0
        self._pieces = 0
        self._announced = 0
        self._opening: dict[str, Any] = {}
        self._turn = TurnId("")
        self._previous: LastAnswer | None = None
        self._rebuilds: Mapping[int, TurnPinned] = {}
        self._begun = False
        self._answer: _Answer | None = None
        self._waits = False
        self._took_over = False
        self._apart = False
        """Whether another process took over after the last event."""
        self._mute = False
        """The reader has some of the answer that nobody knows of: it is sent no more but how each item ends."""

    @property
    def next(self) -> int:
        """The number of the event that comes next."""
        return self._number

    @property
    def last(self) -> int:
        """The number of the last event that the reader has."""
        return max(self._number - 1, self._after or 0)

    def is_ahead_of(self, stored: StoredTurn) -> bool:
        """Whether another process took the turn over from the one that this reader was told by."""
        streamed = stored.turn.streamed
        taken_over = streamed is not None and TAKEN_OVER in streamed.pieces
        return taken_over and self._pieces > 0 and not self._took_over

    def pass_over(self, stored: StoredTurn) -> None:
        """What comes before any of the answer."""
        for _ in self.opening(stored):
            pass

    def opening(self, stored: StoredTurn) -> Iterator[str]:
        self._opening, self._turn = opening_object(stored), stored.turn.id
        self._waits, self._previous = in_background(stored.turn), stored.previous
        yield from self._event("response.created", response=self._opening)
        name = "response.queued" if self._waits else "response.in_progress"
        yield from self._event(name, response=self._opening)

    def begun(self, attempt: int, rebuilds: Mapping[int, TurnPinned]) -> Iterator[str]:
        """Args: rebuilds: that attempts as far as this one wait for, by attempt."""
        self._rebuilds = rebuilds
        if self._begun or attempt == 0:
            return
        self._begun = True
        if self._waits:
            # In the background: a worker has taken it up.
            yield from self._event("response.in_progress", response=self._opening | {"status": "in_progress"})
        yield from self._rebuild(1)

    def _rebuild(self, attempt: int) -> Iterator[str]:
        pinned = self._rebuilds.get(attempt)
        if pinned is None:
            return
        before = self._previous
        assert before is not None  # noqa: S101 what is rebuilt is its window
        yield from self._event(
            "everturn.rebuild",
            attempt=attempt,
            rebuild=pinned.rebuild,
            revision=pinned.revision,
            previous_revision=before.engine_revision,
            tokens_total=before.tokens,
            reason=pinned.reason,
        )

    def cut(
        self, pieces: Sequence[int], announced: Sequence[RevisionDigest], line: str, item: ItemId
    ) -> Iterator[str]:
        """What of these is new to the reader."""
        for piece in pieces[self._pieces :]:
            self._pieces += 1
            if piece == TAKEN_OVER:
                self._take_over()
                continue
            if piece == 0:
                self._announced += 1
                attempt, revision = self._announced + 1, announced[self._announced - 1]
                yield from self._event("everturn.attempt", attempt=attempt, revision=revision)
                yield from self._rebuild(attempt)
                continue
            yield from self._told(self._of(item).go_on(line, piece))

    def ending(self, stored: StoredTurn, channel: TurnChannel, view: View) -> Iterator[str]:
        turn, completed = stored.turn, stored.turn.completed
        yield from self.begun(turn.attempt, {pinned.attempt: pinned for pinned in turn.rebuilds})
        recorded = streamed = turn.streamed or channel.record(turn.id)
        if streamed is not None and streamed.lost and self._reads_the_answer(stored, streamed):
            streamed = None
        if streamed is not None:
            line = streamed.text if streamed.lost or completed is None else _line(turn, completed)
            yield from self.cut(streamed.pieces, streamed.announced, line, streamed.item)
        if streamed is not None and streamed.lost:
            yield from self.failed(stored, "attempt_lost", ATTEMPT_LOST.format(turn.id))
        elif completed is not None:
            yield from self._completed(stored, completed)
        elif turn.failed is not None:
            self._go_on_after_the_reader(recorded)
            yield from self._event("response.failed", response=response_object(stored))
        else:
            self._go_on_after_the_reader(recorded)
            yield from self.failed(stored, *(view.failure or UNEXPLAINED))

    def _reads_the_answer(self, stored: StoredTurn, lost: TurnStreamed) -> bool:
        """In place of a stream that was lost, as its first reader did not come for: from numbers on that the lost one never had."""
        first = _end_of(stored, lost) + NUMBERS_APART
        reads = self._pieces == 0 if self._after is None else self._after >= first
        if reads:
            self._number, self._answer, self._mute = first, None, False
        return reads

    def _completed(self, stored: StoredTurn, completed: TurnCompleted) -> Iterator[str]:
        status, answer = status_of(stored.turn), self._of(completed.item)
        yield from self._told(answer.go_on(_line(stored.turn, completed)))
        yield from self._told(answer.end(status, scored_of(stored.turn)))
        yield from self._event(f"response.{status}", response=response_object(stored))

    def failed(self, stored: StoredTurn, code: str, message: str) -> Iterator[str]:
        ended = response_object(stored) | {
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": [],
        }
        yield from self._event("response.failed", response=ended)

    def _of(self, item: ItemId) -> "_Answer":
        if self._answer is None:
            self._answer = _Answer(Ids(self._turn, item))
        return self._answer

    def _told(self, events: Iterable[Told]) -> Iterator[str]:
        for name, fields in events:
            yield from self._event(name, **fields)

    def _take_over(self) -> None:
        first = self._number
        self._apart = self._took_over = True
        self._mute = self._after is not None and first <= self._after < first + NUMBERS_APART

    def _go_on_after_the_reader(self, streamed: TurnStreamed | None) -> None:
        """Where nothing says what its stream was, the end must not be taken for one of the events that it has."""
        unknown = streamed is None or self._apart
        self._apart = False
        if unknown and self._after is not None:
            self._number = max(self._number, self._after + 1)

    def _event(self, name: str, /, **fields: Any) -> Iterator[str]:
        if self._apart:
            self._apart = False
            self._number += NUMBERS_APART
        number, self._number = self._number, self._number + 1
        muted = self._mute and name in UNTIL_THE_END
        if (self._after is None or number > self._after) and not muted:
            data = {"type": name, "sequence_number": number} | fields
            yield f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _end_of(stored: StoredTurn, lost: TurnStreamed) -> int:
    """The number of the event that ended a stream that was lost."""
    told = _Writer(maxsize)
    told.pass_over(stored)
    rebuilds = {pinned.attempt: pinned for pinned in stored.turn.rebuilds}
    events = (
        told.begun(stored.turn.attempt, rebuilds),
        told.cut(lost.pieces, lost.announced, lost.text, lost.item),
        told.failed(stored, "attempt_lost", ""),
    )
    deque(chain.from_iterable(events), maxlen=0)
    return told.next - 1


class _Answer:
    """The items of an answer as far as its line was told."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._reader = Reader()
        self._characters = 0
        self._index = -1
        self._item: Item | None = None
        self._said: list[str] = []

    def go_on(self, line: str, piece: int | None = None) -> Iterator[Told]:
        """Args: piece: so many characters more of it; None for all that there is."""
        start, self._characters = self._characters, len(line) if piece is None else self._characters + piece
        added = line[start : self._characters]
        if self._item is not None and added and MARK not in added:
            self._said.append(added)
            yield item_events.more(self._item, self._index, added)
            return
        for told in self._reader.read(added):
            match told:
                case Begun():
                    yield from self._over("completed", None)
                    yield from self._begin(told)
                case str():
                    assert self._item is not None  # noqa: S101 a reader tells first what it is
                    self._said.append(told)
                    yield item_events.more(self._item, self._index, told)

    def end(self, status: str, scored: TurnScored | None) -> Iterator[Told]:
        """All was told. An answer without a word is an empty message."""
        if self._index < 0:
            yield from self._begin(Begun(kind=ItemKind.MESSAGE))
        yield from self._over(status, scored)

    def _begin(self, told: Begun) -> Iterator[Told]:
        name = self._ids.next(told.kind)
        self._item = Item(
            id=name.item,
            role=Role.ASSISTANT,
            text="",
            kind=told.kind,
            call=name.call,
            function=told.function,
        )
        self._index, self._said = self._index + 1, []
        yield from item_events.begun(self._item, self._index)

    def _over(self, status: str, scored: TurnScored | None) -> Iterator[Told]:
        if self._item is not None:
            whole = replace(self._item, text="".join(self._said))
            self._item = None
            yield from item_events.over(whole, self._index, status, scored)


def _line(turn: Turn, completed: TurnCompleted) -> str:
    """Of the accepted answer."""
    return plain(completed.text) if turn.parsed is None else line_of(turn.parsed.parts)
