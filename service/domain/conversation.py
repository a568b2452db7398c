"""A conversation as folded from its events: items, turns, and the token window that the next prompt extends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import assert_never

from service.domain.artifact import NOT_THE_ARTIFACTS_FAULT, ArtifactId
from service.domain.events import (
    AttemptFailed,
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    ConversationUpdated,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemAccepted,
    ItemDeleted,
    ItemId,
    KvRebuilt,
    KvRefused,
    MessageAccepted,
    OnUpgrade,
    ReasoningAccepted,
    ResponseDeleted,
    Role,
    TenantId,
    TurnAsked,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.items import CallId, ItemKind
from service.domain.turn import Turn, TurnEvent, TurnState, advance

LENGTH = "length"
"""vLLM's reason to finish at `max_tokens` or at the end of its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    id: ItemId
    role: Role
    text: str
    """What was said; of a function call its arguments, and of what it gave back its output."""
    turn: TurnId | None = None
    """The turn that answered with it; None for what a client said."""
    kind: ItemKind = ItemKind.MESSAGE
    call: CallId | None = None
    """Of a function call, and of its output."""
    function: str = ""
    """That is called."""
    cut: bool = False
    """Whether the answer ended in it for want of room: it may be half of what it was to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A conversation whose history, as far as some turn, is the beginning of this one's."""

    conversation: ConversationId
    tokens: int
    """Of its window, that this one's begins with: as far as its KV is good here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """`version` counts the events folded in: the `stream_version` that the next append expects."""

    tenant: TenantId
    id: ConversationId
    version: int = 0
    alias: str = ""
    on_upgrade: OnUpgrade | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    items: tuple[Item, ...] = ()
    """What the next prompt is made of."""
    withdrawn: tuple[Item, ...] = ()
    """What turns that failed had said, since their clients send it again, and what was deleted: in no prompt."""
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    last: TurnCompleted | None = None
    segments: tuple[tuple[int, ...], ...] = ()
    """The window in the pieces that its turns added; joined only where it is needed, so that a fold stays linear."""
    covered_items: int = 0
    """How many leading items the window holds."""
    dead: frozenset[ArtifactId] = frozenset()
    """Artifacts that a consumer refused for what they are: never offered again."""
    erased: ConversationErased | None = None
    """Its words are gone for good; it can be neither read nor continued."""
    deleted_responses: frozenset[TurnId] = frozenset()
    fork: ConversationForked | None = None
    """Where its history begins, if it did not begin by itself."""
    ancestors: tuple[Ancestor, ...] = ()
    """Of a fork, nearest first."""
    unsettled: bool = False
    """Whether function calls, outputs or deletions came with the last answer or after it: calls may be open."""

    @property
    def exists(self) -> bool:
        return self.version > 0

    @property
    def window(self) -> tuple[int, ...]:
        """Exact token ids of the last completed turn: its prompt, then its output."""
        return tuple(chain.from_iterable(self.segments))

    @property
    def window_tokens(self) -> int:
        return sum(map(len, self.segments))

    @property
    def open_turn(self) -> Turn | None:
        return next(
            (t for t in self.turns.values() if t.state in (TurnState.STARTED, TurnState.PINNED)), None
        )


def fold(tenant: TenantId, conversation: ConversationId, events: Iterable[ConversationEvent]) -> Conversation:
    return reduce(evolve, events, Conversation(tenant=tenant, id=conversation))


def branch(parent: Conversation, child: ConversationId) -> Conversation:
    """What a fork's own events are folded onto: its parent as it was at the fork."""
    nearest = Ancestor(conversation=parent.id, tokens=sum(map(len, parent.segments)))
    return replace(parent, id=child, version=0, fork=None, ancestors=(nearest, *parent.ancestors))


def evolve(state: Conversation, event: ConversationEvent) -> Conversation:
    state = replace(state, version=state.version + 1)
    match event:
        case TurnStarted():
            return _with_turn(state, Turn.of(event))
        case (
            TurnAsked()
            | TurnPinned()
            | KvRefused()
            | KvRebuilt()
            | AttemptFailed()
            | TurnStreamed()
            | TurnScored()
            | TurnParsed()
            | TurnCompleted()
            | TurnFailed()
        ):
            return _advanced(_with_turn(state, advance(state.turns[event.turn], event)), event)
        case MessageAccepted() | FunctionCallAccepted() | FunctionCallOutputAccepted() | ReasoningAccepted():
            item = accepted_item(event)
            unsettled = state.unsettled or item.call is not None
            return replace(state, items=(*state.items, item), unsettled=unsettled)
        case ItemDeleted():
            return _without(state, event.item)
        case ResponseDeleted():
            return replace(state, deleted_responses=state.deleted_responses | {event.turn})
        case ConversationErased():
            return _erased(state, event)
        case _:
            return _itself(state, event)


def _itself(
    state: Conversation,
    event: ConversationCreated | ConversationForked | ConversationUpdated | ConversationDeleted,
) -> Conversation:
    match event:
        case ConversationCreated():
            return replace(state, alias=event.alias, on_upgrade=event.on_upgrade, metadata=event.metadata)
        case ConversationForked():
            return replace(state, fork=event)
        case ConversationUpdated():
            return replace(state, metadata=event.metadata)
        case ConversationDeleted():
            return replace(state, deleted=True)
        case _:
            assert_never(event)


def _advanced(state: Conversation, event: TurnEvent) -> Conversation:
    """What the turn's move means for the conversation beside it."""
    match event:
        case KvRefused() if event.refusal.reason not in NOT_THE_ARTIFACTS_FAULT:
            return replace(state, dead=state.dead | {ArtifactId(event.refusal.artifact)})
        case TurnFailed():
            return _withdrawn(state, event.turn)
        case TurnCompleted():
            return _completed(state, event)
        case _:
            return state


def _with_turn(state: Conversation, turn: Turn) -> Conversation:
    return replace(state, turns={**state.turns, turn.id: turn})


def _withdrawn(state: Conversation, turn: TurnId) -> Conversation:
    theirs = tuple(item for item in state.items if item.id in state.turns[turn].items)
    kept = tuple(item for item in state.items if item not in theirs)
    return replace(state, items=kept, withdrawn=(*state.withdrawn, *theirs))


def _without(state: Conversation, item: ItemId) -> Conversation:
    """A window that held it is no beginning of any later prompt: the next one is rendered whole."""
    place = next(n for n, one in enumerate(state.items) if one.id == item)
    kept = (*state.items[:place], *state.items[place + 1 :])
    gone = (*state.withdrawn, state.items[place])
    state = replace(state, items=kept, withdrawn=gone, unsettled=True)
    if place >= state.covered_items:
        return state
    useless = tuple(replace(ancestor, tokens=0) for ancestor in state.ancestors)
    return replace(state, segments=(), covered_items=0, ancestors=useless)


def _erased(state: Conversation, event: ConversationErased) -> Conversation:
    """The turns stay, as what they are without their words: a late attempt must still find itself fenced off."""
    return replace(
        state, items=(), withdrawn=(), last=None, segments=(), covered_items=0, dead=frozenset(), erased=event
    )


def _completed(state: Conversation, event: TurnCompleted) -> Conversation:
    answer = answer_items(event, state.turns[event.turn].parsed)
    carried = state.segments if event.extends is not None else ()
    return replace(
        state,
        items=(*state.items, *answer),
        last=event,
        segments=(*carried, event.prompt_delta, event.output),
        covered_items=len(state.items) + len(answer),
        unsettled=any(item.call is not None for item in answer),
    )


def accepted_item(event: ItemAccepted) -> Item:
    match event:
        case MessageAccepted():
            return Item(id=event.item, role=event.role, text=event.text)
        case FunctionCallAccepted():
            return Item(
                id=event.item,
                role=Role.ASSISTANT,
                text=event.arguments,
                kind=ItemKind.FUNCTION_CALL,
                call=event.call,
                function=event.function,
            )
        case FunctionCallOutputAccepted():
            return Item(
                id=event.item,
                role=Role.TOOL,
                text=event.output,
                kind=ItemKind.FUNCTION_CALL_OUTPUT,
                call=event.call,
            )
        case ReasoningAccepted():
            return Item(id=event.item, role=Role.ASSISTANT, text=event.text, kind=ItemKind.REASONING)


def answer_items(event: TurnCompleted, parsed: TurnParsed | None) -> tuple[Item, ...]:
    """Args: parsed: None where the answer is one message."""
    items = _said(event) if parsed is None else _parts(event, parsed)
    if event.finish_reason != LENGTH:
        return items
    return (*items[:-1], *(replace(last, cut=True) for last in items[-1:]))


def _said(event: TurnCompleted) -> tuple[Item, ...]:
    return (Item(id=event.item, role=Role.ASSISTANT, text=event.text, turn=event.turn),)


def _parts(event: TurnCompleted, parsed: TurnParsed) -> tuple[Item, ...]:
    return tuple(
        Item(
            id=item,
            role=Role.ASSISTANT,
            text=part.text,
            turn=event.turn,
            kind=part.kind,
            call=part.call,
            function=part.function,
        )
        for item, part in zip(parsed.items, parsed.parts, strict=True)
    )
