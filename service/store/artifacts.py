"""Where KV is believed to be, for the planner; disposable rows, and the consumer checks the thing itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Text, any_, bindparam, delete, extract, func, select
from sqlalchemy.dialects.postgresql import ARRAY, insert

from service.domain.artifact import ArtifactId, BootId
from service.domain.conversation import Ancestor
from service.domain.events import ConversationId, TenantId
from service.domain.evidence import Published
from service.domain.plan import StoredArtifact
from service.domain.revision import RevisionDigest
from service.store.hot_statement import HotStatement
from service.store.leases import CLOCK
from service.store.tables import artifacts


def record(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    published: Published,
    now: datetime,
) -> None:
    """Recording the same artifact twice changes nothing."""
    row = {
        "artifact_id": published.artifact,
        "tenant_id": tenant,
        "conversation_id": conversation,
        "revision": published.revision,
        "producer": published.producer,
        "made_by": published.made_by,
        "tokens": published.tokens,
        "blocks": published.blocks,
        "bytes": published.bytes,
        "tip": published.tip,
        "expires_ms": published.expires_ms,
        "recorded_at": now,
    }
    RECORD.run(conn, row)


NEWEST = 8
"""Artifacts of one conversation and revision that a plan chooses from: each turn adds one, and the last few hold the most."""

# Built once: what every turn comes by.
RECORD = HotStatement(
    insert(artifacts).on_conflict_do_nothing(), columns=[column.name for column in artifacts.columns]
)
TOKENS = select(artifacts.c.tokens).where(
    artifacts.c.artifact_id == bindparam("wanted"),
    artifacts.c.tenant_id == bindparam("tenant"),
    artifacts.c.conversation_id == bindparam("of"),
    artifacts.c.revision == bindparam("under"),
)
_RANKED = (
    select(
        *(
            artifacts.c[name]
            for name in ("artifact_id", "conversation_id", "revision", "producer", "tokens", "recorded_at")
        ),
        func.row_number()
        .over(
            partition_by=(artifacts.c.conversation_id, artifacts.c.revision),
            order_by=(artifacts.c.recorded_at.desc(), artifacts.c.tokens.desc(), artifacts.c.artifact_id),
        )
        .label("place"),
    )
    .where(
        artifacts.c.tenant_id == bindparam("tenant"),
        artifacts.c.conversation_id == any_(bindparam("conversations", type_=ARRAY(Text))),
        artifacts.c.expires_ms > extract("epoch", CLOCK) * 1000,
    )
    .subquery()
)
OF_CONVERSATION = HotStatement(
    select(
        *(_RANKED.c[name] for name in ("artifact_id", "conversation_id", "revision", "producer", "tokens"))
    )
    .where(_RANKED.c.place <= NEWEST)
    .order_by(
        _RANKED.c.conversation_id != bindparam("own"),
        _RANKED.c.recorded_at.desc(),
        _RANKED.c.tokens.desc(),
        _RANKED.c.artifact_id,
    )
)


def of_conversation(
    conn: Connection, tenant: TenantId, conversation: ConversationId, ancestors: Sequence[Ancestor] = ()
) -> list[StoredArtifact]:
    """Unexpired by the database's clock, newest first; after its own those of its ancestors, as far as they are of use to it."""
    shared = {one.conversation: one.tokens for one in ancestors if one.tokens > 0}
    whose = {"tenant": tenant, "own": conversation, "conversations": [conversation, *shared]}
    return [_shared(row, shared) for row in OF_CONVERSATION.all(conn, whose)]


def tokens_of(
    conn: Connection,
    tenant: TenantId,
    conversation: ConversationId,
    artifact: ArtifactId,
    *,
    under: RevisionDigest,
) -> int:
    """0 for one that is not known, or of another revision."""
    of = {"tenant": tenant, "of": conversation, "wanted": artifact, "under": under}
    return conn.execute(TOKENS, of).scalar_one_or_none() or 0


def list_artifacts(conn: Connection, conversation: ConversationId) -> list[StoredArtifact]:
    """For operators: of whichever tenant, expired ones too, oldest first."""
    query = select(artifacts).where(artifacts.c.conversation_id == conversation)
    return [_stored(row) for row in conn.execute(query.order_by(artifacts.c.recorded_at))]


def forget(conn: Connection, artifact: ArtifactId) -> None:
    conn.execute(delete(artifacts).where(artifacts.c.artifact_id == artifact))


def forget_conversation(conn: Connection, tenant: TenantId, conversation: ConversationId) -> list[ArtifactId]:
    """Returns what there was. What is published of it later is known again, and refused if it does not fit."""
    query = delete(artifacts).where(
        artifacts.c.tenant_id == tenant, artifacts.c.conversation_id == conversation
    )
    return [ArtifactId(name) for name in conn.execute(query.returning(artifacts.c.artifact_id)).scalars()]


def _stored(row: Row[Any]) -> StoredArtifact:
    return StoredArtifact(
        artifact=ArtifactId(row.artifact_id),
        revision=RevisionDigest(row.revision),
        producer=BootId(row.producer),
        tokens=row.tokens,
    )


def _shared(row: Row[Any], shared: Mapping[ConversationId, int]) -> StoredArtifact:
    """What was computed after a fork is of no use to it: the longest is not the best."""
    stored = _stored(row)
    return replace(
        stored, tokens=min(stored.tokens, shared.get(ConversationId(row.conversation_id), stored.tokens))
    )
