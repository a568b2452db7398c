"""What a fork inherits: the events of its parent as far as the fork, and of that one's parent; nothing is copied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from sqlalchemy import Connection, select, text

from service.domain.conversation import Conversation, branch, evolve
from service.domain.errors import Internal
from service.domain.events import (
    ConversationEvent,
    ConversationForked,
    ConversationId,
    Event,
    FleetEvent,
    ItemId,
    TenantId,
    TurnCompleted,
    TurnId,
)
from service.store.tables import events
from service.store.timeline import read_as_far_as

NEWEST = 2**63 - 1
"""No version is later."""

FORKED_AT = 2
"""The `stream_version` of a `conversation.forked`: after the conversation was made, and before anything else."""

CHILDREN = text("""
    SELECT stream FROM events
    WHERE tenant_id = :tenant AND type = 'conversation.forked' AND payload ->> 'parent' = :parent
    ORDER BY position
""")


LINEAGE = text("""
    WITH RECURSIVE line AS (
        SELECT payload ->> 'parent' AS parent, CAST(payload ->> 'parent_version' AS bigint) AS version, 1 AS depth
        FROM events WHERE tenant_id = :tenant AND stream = :conversation AND type = 'conversation.forked'
        UNION ALL
        SELECT forked.payload ->> 'parent', CAST(forked.payload ->> 'parent_version' AS bigint), line.depth + 1
        FROM line JOIN events AS forked
            ON forked.tenant_id = :tenant AND forked.stream = line.parent AND forked.type = 'conversation.forked'
    )
    SELECT parent, version, EXISTS (
        SELECT FROM events AS tombstone
        WHERE tombstone.type = 'conversation.erased' AND tombstone.tenant_id = :tenant AND tombstone.stream = line.parent
    ) AS erased
    FROM line ORDER BY depth
""")

DELETED = text("""
    SELECT payload ->> 'item' AS item FROM events
    WHERE tenant_id = :tenant AND stream = :stream AND type = 'item.deleted'
        AND stream_version > :after AND stream_version <= :upto
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """Of a parent, as far as `version`."""

    conversation: ConversationId
    version: int
    erased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Where in its stream a turn got its answer."""

    version: int
    chain: bytes


def fold(
    conn: Connection, tenant: TenantId, conversation: ConversationId, history: Sequence[Event]
) -> Conversation:
    """Of all events of its stream, onto what it inherits.

    Raises:
        Internal: an event that is no conversation's.
    """
    beginning = Conversation(tenant=tenant, id=conversation)
    if len(history) >= FORKED_AT and isinstance(forked := history[FORKED_AT - 1], ConversationForked):
        beginning = branch(load_as_of(conn, tenant, forked.parent, forked.parent_version), conversation)
    return reduce(evolve, [_of_conversation(event, conversation) for event in history], beginning)


def load_as_of(
    conn: Connection, tenant: TenantId, conversation: ConversationId, version: int
) -> Conversation:
    """As it was at that version; without its words, and marked as erased, if it or what it inherits was since."""
    history, tombstone = read_as_far_as(conn, tenant=tenant, stream=conversation, version=version)
    state = fold(conn, tenant, conversation, history)
    if state.version != version:
        raise Internal(f"A fork was made of version {version} of {conversation}, which is not there.")
    return state if tombstone is None else replace(state, erased=tombstone)


def lineage(conn: Connection, tenant: TenantId, conversation: ConversationId) -> list[Inherited]:
    """Whose histories come before a fork's own, nearest first; none of what is no fork."""
    return [
        Inherited(conversation=ConversationId(row.parent), version=row.version, erased=row.erased)
        for row in conn.execute(LINEAGE, {"tenant": tenant, "conversation": conversation})
    ]


def deleted_items(
    conn: Connection, tenant: TenantId, conversation: ConversationId, *, after: int = 0, upto: int
) -> list[ItemId]:
    """By events of its own stream."""
    found = conn.execute(DELETED, {"tenant": tenant, "stream": conversation, "after": after, "upto": upto})
    return [ItemId(item) for item in found.scalars()]


def deletes_since(
    conn: Connection, tenant: TenantId, origin: ConversationId, parent: ConversationId, version: int
) -> bool:
    """Whether `origin`, or one between it and this parent of it, deleted an item after that version of the parent."""
    levels = [(origin, NEWEST), *((one.conversation, one.version) for one in lineage(conn, tenant, origin))]
    for stream, upto in levels:
        after = version if stream == parent else 0
        if deleted_items(conn, tenant, stream, after=after, upto=upto):
            return True
        if stream == parent:
            return False
    return False


def children(conn: Connection, tenant: TenantId, conversation: ConversationId) -> list[ConversationId]:
    """Its own forks, oldest first; theirs are not among them."""
    found = conn.execute(CHILDREN, {"tenant": tenant, "parent": conversation})
    return [ConversationId(stream) for stream in found.scalars()]


def descendants(conn: Connection, tenant: TenantId, conversation: ConversationId) -> list[ConversationId]:
    """Its forks and theirs, each after what it was forked from."""
    return [
        each
        for fork in children(conn, tenant, conversation)
        for each in (fork, *descendants(conn, tenant, fork))
    ]


def find_completion(
    conn: Connection, tenant: TenantId, conversation: ConversationId, turn: TurnId
) -> Completion:
    query = select(events.c.stream_version, events.c.chain).where(
        events.c.tenant_id == tenant,
        events.c.stream == conversation,
        events.c.type == TurnCompleted.name,
        events.c.payload["turn"].astext == turn,
    )
    row = conn.execute(query).one()
    return Completion(version=row.stream_version, chain=row.chain)


def _of_conversation(event: Event, conversation: ConversationId) -> ConversationEvent:
    if isinstance(event, FleetEvent):
        raise Internal(f"Conversation {conversation} holds a '{event.name}', which belongs to the fleet.")
    return event
