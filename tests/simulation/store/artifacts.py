"""As service.store.artifacts."""

from collections.abc import Sequence
from datetime import datetime

from service.domain.artifact import ArtifactId
from service.domain.conversation import Ancestor
from service.domain.events import ConversationId, TenantId
from service.domain.evidence import Published
from service.domain.plan import StoredArtifact
from service.domain.revision import RevisionDigest
from service.store.artifacts import NEWEST
from tests.simulation.tables import ArtifactRow, Session


def record(
    conn: Session, *, tenant: TenantId, conversation: ConversationId, published: Published, now: datetime
) -> None:
    key = (tenant, conversation)
    known = conn.tables.artifacts.get(key, ())
    if any(row.published.artifact == published.artifact for row in known):
        return
    row = ArtifactRow(
        tenant=tenant, conversation=conversation, published=published, recorded_at=now, number=len(known)
    )
    conn.set(conn.tables.artifacts, key, (*known, row))


def of_conversation(
    conn: Session, tenant: TenantId, conversation: ConversationId, ancestors: Sequence[Ancestor] = ()
) -> list[StoredArtifact]:
    assert not ancestors
    now_ms = conn.now.timestamp() * 1000
    rows = [
        row
        for row in conn.tables.artifacts.get((tenant, conversation), ())
        if row.published.expires_ms > now_ms
    ]
    rows.sort(key=lambda row: (row.recorded_at, row.published.tokens, row.number), reverse=True)
    kept: dict[str, int] = {}
    found = []
    for row in rows:
        kept[row.published.revision] = kept.get(row.published.revision, 0) + 1
        if kept[row.published.revision] <= NEWEST:
            found.append(
                StoredArtifact(
                    artifact=row.published.artifact,
                    revision=row.published.revision,
                    producer=row.published.producer,
                    tokens=row.published.tokens,
                )
            )
    return found


def tokens_of(
    conn: Session,
    tenant: TenantId,
    conversation: ConversationId,
    artifact: ArtifactId,
    *,
    under: RevisionDigest,
) -> int:
    rows = conn.tables.artifacts.get((tenant, conversation), ())
    found = [row.published for row in rows if row.published.artifact == artifact]
    return sum(one.tokens for one in found if one.revision == under)


def forget_conversation(conn: Session, tenant: TenantId, conversation: ConversationId) -> list[ArtifactId]:
    known = conn.tables.artifacts.get((tenant, conversation), ())
    conn.remove(conn.tables.artifacts, (tenant, conversation))
    return [row.published.artifact for row in known]
