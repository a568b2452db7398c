"""What the next prompt is made of: the items that stand, and the exact window of the last answer. Folded from what says it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from service.domain.conversation import Conversation, Item
from service.domain.events import (
    ConversationErased,
    ConversationEvent,
    ItemDeleted,
    ItemId,
    MessageAccepted,
    Role,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnStarted,
)

TOLD = (MessageAccepted, TurnCompleted, ItemDeleted, TurnFailed, ConversationErased)
"""What a transcript depends on, besides the `TurnStarted` of turns that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """`covered` counts the leading items that the window holds; `last` is the turn whose window it is."""

    items: tuple[Item, ...] = ()
    window: tuple[int, ...] = ()
    covered: int = 0
    last: TurnId | None = None

    @classmethod
    def of(cls, whole: Conversation) -> "Transcript":
        last = whole.last.turn if whole.last else None
        return cls(items=whole.items, window=whole.window, covered=whole.covered_items, last=last)


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
    )


@dataclass(slots=True)
class _Draft:
    """Changed in place: a tuple made anew for each item would cost more than reading them."""

    items: dict[ItemId, Item] = field(default_factory=dict)
    said_for: dict[TurnId, tuple[ItemId, ...]] = field(default_factory=dict)
    segments: list[tuple[int, ...]] = field(default_factory=list)
    covered: int = 0
    last: TurnId | None = None

    def take(self, event: ConversationEvent) -> None:
        match event:
            case MessageAccepted():
                self.items[event.item] = Item(id=event.item, role=event.role, text=event.text)
            case TurnCompleted():
                self._answer(event)
            case TurnStarted():
                self.said_for[event.turn] = event.items
            case TurnFailed():
                for item in self.said_for[event.turn]:
                    self.items.pop(item, None)
            case ItemDeleted():
                self._delete(event.item)
            case ConversationErased():
                self.items, self.segments, self.covered, self.last = {}, [], 0, None
            case _:
                pass

    def _answer(self, event: TurnCompleted) -> None:
        if event.extends is None:
            self.segments = []
        self.segments += (event.prompt_delta, event.output)
        self.items[event.item] = Item(id=event.item, role=Role.ASSISTANT, text=event.text, turn=event.turn)
        self.covered, self.last = len(self.items), event.turn

    def _delete(self, item: ItemId) -> None:
        """A window that held it is no beginning of any later prompt."""
        place = next(n for n, one in enumerate(self.items) if one == item)
        del self.items[item]
        if place < self.covered:
            self.segments, self.covered = [], 0
