"""A conversation forked at a completed turn: what makes the fork, before it is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

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
from service.store import ancestry, event_store, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A conversation that is not recorded yet, as `events` make it."""

    state: Conversation
    events: tuple[ConversationEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    conversation: ConversationId
    after: TurnId | None
    """The turn whose answer is the last that the fork inherits; None for the last one that was completed."""


def find_origin(conn: Connection, tenant: TenantId, point: ForkPoint) -> tuple[Conversation, TurnId]:
    """The conversation as it is now, and the turn after which it is forked.

    Raises:
        NotFound, Gone: the conversation.
        InvalidInput: it has no answer yet.
    """
    origin = event_store.load_conversation(conn, tenant, point.conversation)
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
    return origin, origin.last.turn


def fork(
    conn: Connection,
    origin: Conversation,
    turn: TurnId,
    child: ConversationId,
    created: ConversationCreated,
    *,
    param: str,
) -> Opening:
    """Of the conversation that the turn was answered in, which may be one that `origin` is a fork of itself.

    `param` is how the client named the turn.

    Raises:
        NotFound: no such turn in `origin`.
        Gone: erased.
        InvalidInput: the turn has no answer, or there are too many forks of forks.
    """
    decide.check_forkable(origin, turn, param)
    parent = turns.find_turn(conn, origin.tenant, turn)
    if parent is None:
        raise NotFound("response", turn)
    # Whoever erases it holds this too, and then looks for forks.
    event_store.lock_stream(conn, origin.tenant, parent)
    completion = ancestry.find_completion(conn, origin.tenant, parent, turn)
    inherited = ancestry.load_as_of(conn, origin.tenant, parent, completion.version)
    forked = ConversationForked(
        parent=parent,
        parent_version=completion.version,
        turn=turn,
        parent_chain=completion.chain.hex(),
    )
    events = decide.fork(origin, inherited, created, forked)
    return Opening(state=reduce(evolve, events, branch(inherited, child)), events=events)


def made_like(
    origin: Conversation,
    *,
    alias: str | None = None,
    on_upgrade: OnUpgrade | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ConversationCreated:
    """A fork is what it came from, but for what its client says of it."""
    return ConversationCreated(
        alias=alias or origin.alias,
        on_upgrade=on_upgrade or origin.on_upgrade,
        metadata=dict(origin.metadata if metadata is None else metadata),
    )
