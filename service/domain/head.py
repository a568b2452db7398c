"""The head of a conversation: all that a decision about its next event depends on, and nothing that grows with its turns.

It is folded from few of the events: those that say something lasting, and those since the last answered turn began.
"""

from dataclasses import dataclass, field, replace

from service.domain.artifact import NOT_THE_ARTIFACTS_FAULT, ArtifactId, BootId
from service.domain.conversation import Ancestor, Conversation, accepted_item
from service.domain.events import (
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationEvent,
    ConversationId,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemDeleted,
    ItemId,
    KvRefused,
    MessageAccepted,
    OnUpgrade,
    ReasoningAccepted,
    ResponseDeleted,
    TenantId,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnStarted,
)
from service.domain.revision import RevisionDigest
from service.domain.turn import Turn, TurnEvent, TurnState, advance

LASTING = (ConversationDeleted, ConversationErased, ResponseDeleted, KvRefused)
"""What a head must know of, however long ago it was; besides the conversation's first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAnswer:
    turn: TurnId
    engine_revision: RevisionDigest
    engine: BootId
    extended: bool
    """Whether its prompt began with the window of the answer before it."""
    tokens: int
    """Of its window, with the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """As `Conversation`, without what was said in it. `turns` holds the newest turn, and the one it was loaded for."""

    tenant: TenantId
    id: ConversationId
    version: int = 0
    alias: str = ""
    on_upgrade: OnUpgrade | None = None
    deleted: bool = False
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    last: LastAnswer | None = None
    window_tokens: int = 0
    fresh: tuple[ItemId, ...] = ()
    """Items after the window, where there is a window: one of them can be deleted without it."""
    dead: frozenset[ArtifactId] = frozenset()
    erased: ConversationErased | None = None
    deleted_responses: frozenset[TurnId] = frozenset()
    ancestors: tuple[Ancestor, ...] = ()
    unsettled: bool = False
    """As `Conversation.unsettled`."""

    @property
    def exists(self) -> bool:
        return self.version > 0

    @property
    def newest(self) -> Turn | None:
        return next(reversed(self.turns.values()), None)

    @property
    def open_turn(self) -> Turn | None:
        newest = self.newest
        return newest if newest and newest.state in (TurnState.STARTED, TurnState.PINNED) else None


Standing = Conversation | Head
"""Where a conversation stands, for who decides what may come next."""


def head_of(whole: Conversation, turn: TurnId | None = None) -> Head:
    """Args: turn: one that must be in it, if it is in the conversation."""
    newest = next(reversed(whole.turns), None)
    tokens = whole.window_tokens
    return Head(
        tenant=whole.tenant,
        id=whole.id,
        version=whole.version,
        alias=whole.alias,
        on_upgrade=whole.on_upgrade,
        deleted=whole.deleted,
        # The newest last: a turn that was loaded for is an older one.
        turns={one: _wordless(whole.turns[one]) for one in (turn, newest) if one in whole.turns},
        last=None if whole.last is None else last_answer(whole.last),
        window_tokens=tokens,
        fresh=tuple(item.id for item in whole.items[whole.covered_items :]) if tokens else (),
        dead=whole.dead,
        erased=whole.erased,
        deleted_responses=whole.deleted_responses,
        ancestors=whole.ancestors,
        unsettled=whole.unsettled,
    )


def branch_head(parent: Head, child: ConversationId) -> Head:
    """What a fork's own events are folded onto, as `conversation.branch` does: its parent as it was at the fork."""
    nearest = Ancestor(conversation=parent.id, tokens=parent.window_tokens)
    return replace(parent, id=child, version=0, ancestors=(nearest, *parent.ancestors))


def with_older(head: Head, turn: Turn) -> Head:
    """Beside the newest, which stays the last."""
    return replace(head, turns={turn.id: _wordless(turn), **head.turns})


def advance_head(head: Head, event: ConversationEvent, version: int | None = None) -> Head:
    """Args: version: of the event; the one after the last where None."""
    head = replace(head, version=head.version + 1 if version is None else version)
    match event:
        case TurnStarted():
            return replace(head, turns={event.turn: _wordless(Turn.of(event))})
        case MessageAccepted() | FunctionCallAccepted() | FunctionCallOutputAccepted() | ReasoningAccepted():
            fresh = (*head.fresh, event.item) if head.window_tokens else head.fresh
            return replace(
                head, fresh=fresh, unsettled=head.unsettled or accepted_item(event).call is not None
            )
        case ItemDeleted():
            return _without(head, event.item)
        case ResponseDeleted():
            return replace(head, deleted_responses=head.deleted_responses | {event.turn})
        case ConversationCreated():
            return replace(head, alias=event.alias, on_upgrade=event.on_upgrade)
        case ConversationDeleted():
            return replace(head, deleted=True)
        case ConversationErased():
            return replace(head, last=None, window_tokens=0, fresh=(), dead=frozenset(), erased=event)
        case _ if isinstance(event, TurnEvent):
            return _after(_with_turn(head, event), event)
        case _:
            return head


def _without(head: Head, item: ItemId) -> Head:
    head = replace(head, unsettled=True)
    if item in head.fresh:
        return replace(head, fresh=tuple(one for one in head.fresh if one != item))
    useless = tuple(replace(ancestor, tokens=0) for ancestor in head.ancestors)
    return replace(head, window_tokens=0, fresh=(), ancestors=useless)


def _with_turn(head: Head, event: TurnEvent) -> Head:
    """A lasting event of an older turn has none here to move."""
    if event.turn not in head.turns:
        return head
    moved = _wordless(advance(head.turns[event.turn], event))
    return replace(head, turns={**head.turns, event.turn: moved})


def _after(head: Head, event: TurnEvent) -> Head:
    match event:
        case KvRefused() if event.refusal.reason not in NOT_THE_ARTIFACTS_FAULT:
            return replace(head, dead=head.dead | {ArtifactId(event.refusal.artifact)})
        case TurnFailed():
            withdrawn = head.turns[event.turn].items
            return replace(head, fresh=tuple(item for item in head.fresh if item not in withdrawn))
        case TurnCompleted():
            last = last_answer(event)
            parsed = head.turns[event.turn].parsed
            calls = parsed is not None and any(part.call is not None for part in parsed.parts)
            return replace(head, last=last, window_tokens=last.tokens, fresh=(), unsettled=calls)
        case _:
            return head


def last_answer(event: TurnCompleted) -> LastAnswer:
    return LastAnswer(
        turn=event.turn,
        engine_revision=event.engine_revision,
        engine=event.engine,
        extended=event.extends is not None,
        tokens=event.prompt_tokens + len(event.output),
    )


def _wordless(turn: Turn) -> Turn:
    """Without what no decision needs, most of which is somebody's words."""
    started = replace(turn.started, metadata={})
    parsed = turn.parsed and replace(
        turn.parsed, parts=tuple(replace(part, text="") for part in turn.parsed.parts)
    )
    return replace(
        turn,
        started=started,
        asked=None,
        streamed=None,
        scored=None,
        parsed=parsed,
        completed=None,
        failed=None,
    )
