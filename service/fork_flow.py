"""A conversation forked at a completed turn: what makes the fork, before it is recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

from sqlalchemy import Connection

from service.domain import decide
from service.domain.conversation import Conversation, branch, evolve
from service.domain.errors import InvalidInput, NotFound
from service.domain.events import (
    ConversationCreated,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    OnUpgrade,
    TenantId,
    TurnId,
)
from service.domain.head import Head, Standing, advance_head, branch_head
from service.store import ancestry, event_store, heads, turns

StandingT_co = TypeVar("StandingT_co", bound=Standing, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Generic[StandingT_co]):
    """A conversation that is not recorded yet, as `events` make it."""

    state: StandingT_co
    events: tuple[ConversationEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    conversation: ConversationId
    after: TurnId | None
    """The turn whose answer is the last that the fork inherits; None for the last one that was completed."""


def find_origin(conn: Connection, tenant: TenantId, point: ForkPoint) -> tuple[Head, TurnId]:
    """The conversation as it is now, and the turn after which it is forked, which it knows.

    Raises:
        NotFound, Gone: the conversation.
        InvalidInput: it has no answer yet.
    """
    origin = heads.load_head(conn, tenant, point.conversation, turn=point.after)
    decide.check_there(origin)
    if point.after is not None:
        return origin, point.after
    if origin.last is None:
        raise InvalidInput(
            f"Conversation {origin.id} has no answer yet after which it could be forked; "
            "make a conversation of its own with the same items.",
            "fork_of",
            "nothing_to_fork",
        )
    turn = origin.last.turn
    return heads.load_head(conn, tenant, point.conversation, turn=turn), turn


def fork(
    conn: Connection,
    origin: Head,
    turn: TurnId,
    new_id: Callable[[str], str],
    *,
    param: str,
    created: ConversationCreated | None = None,
) -> Opening[Standing]:
    """Of the conversation that the turn was answered in, which may be one that `origin` is a fork of itself.

    `origin` must know the turn; `param` is how the client named it. Without `created`, the fork is made like it.

    Raises:
        NotFound: no such turn in `origin`.
        Gone: erased.
        InvalidInput: the turn has no answer, or there are too many forks of forks.
    """
    forked, created = _forked(conn, origin, turn, param), created or made_like(conn, origin)
    parent, version = forked.parent, forked.parent_version
    if ancestry.deletes_since(conn, origin.tenant, origin.id, parent, version):
        return _whole(conn, origin, new_id, created, forked)
    inherited = heads.load_head_as_of(conn, origin.tenant, parent, version)
    events = decide.fork(inherited, created, forked)
    return Opening(
        state=reduce(advance_head, events, branch_head(inherited, ConversationId(new_id("conv_")))),
        events=events,
    )


def fork_whole(
    conn: Connection,
    origin: Standing,
    turn: TurnId,
    new_id: Callable[[str], str],
    *,
    param: str,
    created: ConversationCreated | None = None,
) -> Opening[Conversation]:
    """As `fork`, with all that was said."""
    forked = _forked(conn, origin, turn, param)
    return _whole(conn, origin, new_id, created or made_like(conn, origin), forked)


def _forked(conn: Connection, origin: Standing, turn: TurnId, param: str) -> ConversationForked:
    decide.check_forkable(origin, turn, param)
    parent = turns.find_turn(conn, origin.tenant, turn)
    if parent is None:
        raise NotFound("response", turn)
    # Whoever erases it holds this too, and then looks for forks.
    event_store.lock_stream(conn, origin.tenant, parent)
    completion = ancestry.find_completion(conn, origin.tenant, parent, turn)
    return ConversationForked(
        parent=parent,
        parent_version=completion.version,
        turn=turn,
        parent_chain=completion.chain.hex(),
    )


def _whole(
    conn: Connection,
    origin: Standing,
    new_id: Callable[[str], str],
    created: ConversationCreated,
    forked: ConversationForked,
) -> Opening[Conversation]:
    if not isinstance(origin, Conversation):
        origin = event_store.load_conversation(conn, origin.tenant, origin.id)
    inherited = ancestry.load_as_of(conn, origin.tenant, forked.parent, forked.parent_version)
    events = decide.fork(inherited, created, forked, decide.deleted_since(origin, inherited))
    return Opening(
        state=reduce(evolve, events, branch(inherited, ConversationId(new_id("conv_")))), events=events
    )


def made_like(
    conn: Connection,
    origin: Standing,
    *,
    alias: str | None = None,
    on_upgrade: OnUpgrade | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ConversationCreated:
    """A fork is what it came from, but for what its client says of it."""
    if metadata is None:
        metadata = heads.load_metadata(conn, origin.tenant, origin.id)
    return ConversationCreated(
        alias=alias or origin.alias,
        on_upgrade=on_upgrade or origin.on_upgrade,
        metadata=dict(metadata),
    )
