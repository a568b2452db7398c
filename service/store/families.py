"""Conversations of one family, those that were forked of one another, and who of them has KV under a revision or waits for it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Text, any_, bindparam, extract, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from service.domain.events import ConversationId, TenantId
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.store.leases import CLOCK
from service.store.tables import artifacts, rebuilds

MOST_RELATIVES = 64
"""The newest forks: those that talk."""
MOST_LOOKED_AT = 3
"""Whose windows are read, to compare them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    rebuild: str
    conversation: ConversationId
    tokens: int
    """Of the history that is prefilled."""


def relatives(
    conn: Connection, tenant: TenantId, conversation: ConversationId, ancestors: Sequence[ConversationId]
) -> list[ConversationId]:
    """Its ancestors, nearest first, and the forks of these and its own; not theirs."""
    given = {"tenant": tenant, "own": conversation, "parents": [conversation, *ancestors]}
    forks = conn.execute(FORKS, given | {"most": MOST_RELATIVES}).scalars()
    return list(dict.fromkeys([*ancestors, *map(ConversationId, forks)]))


def one_by_one(conn: Connection, tenant: TenantId, oldest: ConversationId) -> None:
    """Until this transaction ends, another of the family waits here."""
    conn.execute(ONE_BY_ONE, {"tenant": tenant, "oldest": oldest})


def with_kv(
    conn: Connection, tenant: TenantId, revision: RevisionDigest, conversations: Collection[ConversationId]
) -> list[ConversationId]:
    """Those with the longest, unexpired by the database's clock."""
    given = {"tenant": tenant, "revision": revision, "conversations": list(conversations)}
    return [ConversationId(name) for name in conn.execute(WITH_KV, given).scalars()]


def awaited(
    conn: Connection, tenant: TenantId, revision: RevisionDigest, conversations: Sequence[ConversationId]
) -> list[Awaited]:
    """Queued or running, for a turn; of the first of these conversations also a warm-up, and that before all others."""
    given = {"tenant": tenant, "revision": revision, "conversations": list(conversations)}
    rows = conn.execute(AWAITED, given | {"own": conversations[0]})
    return [
        Awaited(
            rebuild=row.rebuild_id,
            conversation=ConversationId(row.conversation_id),
            tokens=row.tokens_total,
        )
        for row in rows
    ]


FORKS = text("""
    SELECT stream FROM events
    WHERE tenant_id = :tenant AND type = 'conversation.forked' AND payload ->> 'parent' = ANY (:parents)
        AND stream <> :own
    ORDER BY position DESC LIMIT :most
""").bindparams(bindparam("parents", type_=ARRAY(Text)))
ONE_BY_ONE = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('family', hashtextextended(:oldest, hashtextextended(:tenant, 0))))"
)
_CONVERSATIONS = bindparam("conversations", type_=ARRAY(Text))
WITH_KV = (
    select(artifacts.c.conversation_id)
    .where(
        artifacts.c.tenant_id == bindparam("tenant"),
        artifacts.c.conversation_id == any_(_CONVERSATIONS),
        artifacts.c.revision == bindparam("revision"),
        artifacts.c.expires_ms > extract("epoch", CLOCK) * 1000,
    )
    .group_by(artifacts.c.conversation_id)
    .order_by(func.max(artifacts.c.tokens).desc(), artifacts.c.conversation_id)
    .limit(MOST_LOOKED_AT)
)
_OWN = rebuilds.c.conversation_id == bindparam("own")
AWAITED = (
    select(rebuilds.c.rebuild_id, rebuilds.c.conversation_id, rebuilds.c.tokens_total)
    .where(
        rebuilds.c.tenant_id == bindparam("tenant"),
        rebuilds.c.conversation_id == any_(_CONVERSATIONS),
        rebuilds.c.revision == bindparam("revision"),
        (rebuilds.c.queue == RebuildQueue.INTERACTIVE) | _OWN,
        # A literal: the planner must see that the partial index applies.
        text("state IN ('queued', 'running')"),
    )
    .order_by(_OWN.desc(), rebuilds.c.created_at)
    .limit(1 + MOST_LOOKED_AT)
)
