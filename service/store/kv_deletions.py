"""Which stored KV has to be deleted for an erasure, and what became of that; whoever has the KV store works the rows off."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.artifact import ArtifactId
from service.domain.events import ConversationId, TenantId
from service.store.leases import CLOCK
from service.store.tables import kv_deletions

FIRST_AGAIN_S = 60
LONGEST_AGAIN_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    artifact: ArtifactId
    left_names: tuple[str, ...]
    """Of blocks that an earlier try could not delete, when their manifest was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    why: str
    left_names: tuple[str, ...] = ()


def ask(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    artifacts: Collection[ArtifactId],
    now: datetime,
) -> None:
    """Asking again for the same changes nothing."""
    rows = [
        {"artifact_id": one, "tenant_id": tenant, "conversation_id": conversation, "asked_at": now}
        for one in artifacts
    ]
    if rows:
        conn.execute(insert(kv_deletions).on_conflict_do_nothing(), rows)


def claim(
    conn: Connection, *, store: str, limit: int, only: Collection[ArtifactId] | None = None
) -> list[Deletion]:
    """What waits, tried least first; what failed is tried again later, and later still.

    With `only`, those, whatever became of them before: for who looks into another store.
    """
    picked = select(kv_deletions.c.artifact_id).with_for_update(skip_locked=True)
    if only is not None:
        picked = picked.where(kv_deletions.c.artifact_id.in_(only))
    else:
        picked = picked.where(_due()).order_by(kv_deletions.c.tries, kv_deletions.c.asked_at).limit(limit)
    query = (
        update(kv_deletions)
        .where(kv_deletions.c.artifact_id.in_(picked.scalar_subquery()))
        .values(tries=kv_deletions.c.tries + 1, tried_at=CLOCK, store=store, done_at=None)
        .returning(kv_deletions.c.artifact_id, kv_deletions.c.left_names)
    )
    return [
        Deletion(artifact=ArtifactId(row.artifact_id), left_names=tuple(row.left_names or ()))
        for row in conn.execute(query)
    ]


def settle(
    conn: Connection,
    *,
    gone: Collection[ArtifactId],
    missing: Collection[ArtifactId],
    failed: Mapping[ArtifactId, Failure],
) -> None:
    """Args:
    gone: were in the store, and are not any more.
    missing: were not there: expired, or never published, or in another store.
    """
    for artifacts, found in ((gone, True), (missing, False)):
        if artifacts:
            done = {"found": found, "failure": None, "left_names": None, "done_at": CLOCK}
            conn.execute(update(kv_deletions).where(kv_deletions.c.artifact_id.in_(artifacts)).values(done))
    for artifact, failure in failed.items():
        conn.execute(
            update(kv_deletions)
            .where(kv_deletions.c.artifact_id == artifact)
            .values(found=True, failure=failure.why, left_names=list(failure.left_names) or None)
        )


def _due() -> ColumnElement[bool]:
    again_s = func.least(kv_deletions.c.tries * FIRST_AGAIN_S, LONGEST_AGAIN_S)
    tried_long_ago = kv_deletions.c.tried_at <= CLOCK - func.make_interval(0, 0, 0, 0, 0, 0, again_s)
    return and_(kv_deletions.c.done_at.is_(None), or_(kv_deletions.c.tried_at.is_(None), tried_long_ago))
