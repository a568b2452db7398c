"""What the next prompt is made of: the items that stand, and the exact window of the last answer. Folded from what says it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from service.domain.conversation import Conversation, Item, accepted_item, answer_items
from service.domain.events import (
    ConversationErased,
    ConversationEvent,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemDeleted,
    ItemId,
    MessageAccepted,
    ReasoningAccepted,
    TurnAsked,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnStarted,
)
from service.domain.items import frame_digest

TOLD = (
    MessageAccepted,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ReasoningAccepted,
    TurnAsked,
    TurnParsed,
    TurnCompleted,
    ItemDeleted,
    TurnFailed,
    ConversationErased,
)
"""What a transcript depends on, besides the `TurnStarted` of turns that failed; of the answered, no `TurnAsked`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """`covered` counts the leading items that the window holds; `last` is the turn whose window it is."""

    items: tuple[Item, ...] = ()
    window: tuple[int, ...] = ()
    covered: int = 0
    last: TurnId | None = None
    answer: str = ""
    """What the model wrote for it, word for word: what its items were made of."""
    frame: str | None = None
    """Of the window."""
    asked: TurnAsked | None = None
    """Of the turn that is to be answered."""

    @classmethod
    def of(cls, whole: Conversation) -> "Transcript":
        last, running = whole.last, whole.open_turn
        return cls(
            items=whole.items,
            window=whole.window,
            covered=whole.covered_items,
            last=last.turn if last else None,
            answer=last.text if last else "",
            frame=last.frame if last else None,
            asked=running.asked if running else None,
        )


def frame_of(asked: TurnAsked | None) -> str | None:
    """Of a prompt for what was asked."""
    return None if asked is None else frame_digest(asked.tools, asked.instructions)


def transcribe(events: Iterable[ConversationEvent]) -> Transcript:
    """Args: events: in their order; of the answers before the last whole window, the tokens may be missing."""
    draft = _Draft()
    for event in events:
        draft.take(event)
    return Transcript(
        items=tuple(draft.items.values()),
        window=tuple(chain.from_iterable(draft.segments)),
        covered=draft.covered,
        last=draft.last,
        answer=draft.answer,
        frame=draft.frame,
        asked=draft.asked,
    )


@dataclass(slots=True)
class _Draft:
    """Changed in place: a tuple made anew for each item would cost more than reading them."""

    items: dict[ItemId, Item] = field(default_factory=dict)
    said_for: dict[TurnId, tuple[ItemId, ...]] = field(default_factory=dict)
    segments: list[tuple[int, ...]] = field(default_factory=list)
    covered: int = 0
    last: TurnId | None = None
    answer: str = ""
    frame: str | None = None
    asked: TurnAsked | None = None
    parsed: TurnParsed | None = None

    def take(self, event: ConversationEvent) -> None:
        match event:
            case (
                MessageAccepted()
                | FunctionCallAccepted()
                | FunctionCallOutputAccepted()
                | ReasoningAccepted()
            ):
                self.items[event.item] = accepted_item(event)
            case TurnParsed():
                self.parsed = event
            case TurnAsked():
                self.asked = event
            case TurnCompleted():
                self._answer(event)
            case TurnStarted():
                self.said_for[event.turn] = event.items
            case TurnFailed():
                self.asked = None
                for item in self.said_for[event.turn]:
                    self.items.pop(item, None)
            case ItemDeleted():
                self._delete(event.item)
            case ConversationErased():
                self.items, self.segments, self.covered, self.last = {}, [], 0, None
                self.answer, self.frame = "", None
            case _:
                pass

    def _answer(self, event: TurnCompleted) -> None:
        if event.extends is None:
            self.segments = []
        self.segments += (event.prompt_delta, event.output)
        self.items |= {item.id: item for item in answer_items(event, self._parsed_of(event.turn))}
        self.covered, self.last = len(self.items), event.turn
        self.answer, self.frame = event.text, event.frame
        self.asked = None

    def _parsed_of(self, turn: TurnId) -> TurnParsed | None:
        return self.parsed if self.parsed is not None and self.parsed.turn == turn else None

    def _delete(self, item: ItemId) -> None:
        """A window that held it is no beginning of any later prompt."""
        place = next(n for n, one in enumerate(self.items) if one == item)
        del self.items[item]
        if place < self.covered:
            self.segments, self.covered = [], 0
