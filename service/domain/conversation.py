"""A conversation as folded from its events: items, turns, and the token window that the next prompt extends."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import assert_never

from service.domain.artifact import NOT_THE_ARTIFACTS_FAULT, ArtifactId
from service.domain.events import (
    AttemptFailed,
    ConversationCreated,
    ConversationEvent,
    ConversationId,
    ItemId,
    KvRebuilt,
    KvRefused,
    MessageAccepted,
    OnUpgrade,
    Role,
    TenantId,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.turn import Turn, TurnState, advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    id: ItemId
    role: Role
    text: str
    turn: TurnId | None = None
    """The turn that answered with it; None for what a client said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """`version` counts the events folded in: the `stream_version` that the next append expects."""

    tenant: TenantId
    id: ConversationId
    version: int = 0
    alias: str = ""
    on_upgrade: OnUpgrade | None = None
    items: tuple[Item, ...] = ()
    """What the next prompt is made of."""
    withdrawn: tuple[Item, ...] = ()
    """What turns that failed had said; no part of any prompt, since their clients send it again."""
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    last: TurnCompleted | None = None
    segments: tuple[tuple[int, ...], ...] = ()
    """The window in the pieces that its turns added; joined only where it is needed, so that a fold stays linear."""
    covered_items: int = 0
    """How many leading items the window holds."""
    dead: frozenset[ArtifactId] = frozenset()
    """Artifacts that a consumer refused for what they are: never offered again."""

    @property
    def exists(self) -> bool:
        return self.version > 0

    @property
    def window(self) -> tuple[int, ...]:
        """Exact token ids of the last completed turn: its prompt, then its output."""
        return tuple(chain.from_iterable(self.segments))

    @property
    def open_turn(self) -> Turn | None:
        return next(
            (t for t in self.turns.values() if t.state in (TurnState.STARTED, TurnState.PINNED)), None
        )


def fold(tenant: TenantId, conversation: ConversationId, events: Iterable[ConversationEvent]) -> Conversation:
    return reduce(evolve, events, Conversation(tenant=tenant, id=conversation))


def evolve(state: Conversation, event: ConversationEvent) -> Conversation:
    state = replace(state, version=state.version + 1)
    match event:
        case ConversationCreated():
            return replace(state, alias=event.alias, on_upgrade=event.on_upgrade)
        case MessageAccepted():
            item = Item(id=event.item, role=event.role, text=event.text)
            return replace(state, items=(*state.items, item))
        case TurnStarted():
            return _with_turn(state, Turn.of(event))
        case KvRefused():
            state = _with_turn(state, advance(state.turns[event.turn], event))
            if event.refusal.reason in NOT_THE_ARTIFACTS_FAULT:
                return state
            return replace(state, dead=state.dead | {ArtifactId(event.refusal.artifact)})
        case TurnPinned() | KvRebuilt() | AttemptFailed():
            return _with_turn(state, advance(state.turns[event.turn], event))
        case TurnFailed():
            return _withdrawn(_with_turn(state, advance(state.turns[event.turn], event)), event.turn)
        case TurnCompleted():
            return _completed(_with_turn(state, advance(state.turns[event.turn], event)), event)
        case _:
            assert_never(event)


def _with_turn(state: Conversation, turn: Turn) -> Conversation:
    return replace(state, turns={**state.turns, turn.id: turn})


def _withdrawn(state: Conversation, turn: TurnId) -> Conversation:
    theirs = tuple(item for item in state.items if item.id in state.turns[turn].items)
    kept = tuple(item for item in state.items if item not in theirs)
    return replace(state, items=kept, withdrawn=(*state.withdrawn, *theirs))


def _completed(state: Conversation, event: TurnCompleted) -> Conversation:
    answer = Item(id=event.item, role=Role.ASSISTANT, text=event.text, turn=event.turn)
    carried = state.segments if event.extends is not None else ()
    return replace(
        state,
        items=(*state.items, answer),
        last=event,
        segments=(*carried, event.prompt_delta, event.output),
        covered_items=len(state.items) + 1,
    )
