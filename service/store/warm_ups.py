"""A warm-up's rebuild as a turn finds it that could do without: in a worker's hands, or to be called off."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select, text, update

from service.domain.events import ConversationId, TenantId
from service.domain.plan import RebuildQueue, WarmUp
from service.domain.revision import RevisionDigest
from service.store.leases import CLOCK, expired
from service.store.rebuilds import RebuildState
from service.store.tables import rebuilds


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    rebuild: str
    held: bool
    """By a worker that is alive, as far as its lease tells."""
    warm_up: WarmUp


def find(
    conn: Connection, tenant: TenantId, conversation: ConversationId, revision: RevisionDigest
) -> Found | None:
    """It neither ends nor is claimed before this transaction does."""
    given = {"tenant": tenant, "conversation": conversation, "revision": revision}
    row = conn.execute(FIND, given).one_or_none()
    if row is None:
        return None
    warm_up = WarmUp(tokens_total=row.tokens_total, tokens_done=row.tokens_done)
    return Found(rebuild=row.rebuild_id, held=not row.free, warm_up=warm_up)


def call_off(conn: Connection, rebuild: str, reason: str) -> None:
    """Nothing where a worker has it in its hands."""
    conn.execute(CALL_OFF, {"wanted": rebuild, "why": reason})


def _free() -> ColumnElement[bool]:
    running = and_(rebuilds.c.state == RebuildState.RUNNING, expired(rebuilds.c.lease_expires_at))
    return or_(rebuilds.c.state == RebuildState.QUEUED, running)


# Built once, as all that turns come by.
FIND = (
    select(rebuilds.c.rebuild_id, rebuilds.c.tokens_total, rebuilds.c.tokens_done, _free().label("free"))
    .where(
        rebuilds.c.tenant_id == bindparam("tenant"),
        rebuilds.c.conversation_id == bindparam("conversation"),
        rebuilds.c.revision == bindparam("revision"),
        rebuilds.c.queue == RebuildQueue.BACKGROUND,
        # A literal: the planner must see that the partial index applies.
        text("state IN ('queued', 'running')"),
    )
    .with_for_update()
)
CALL_OFF = (
    update(rebuilds)
    .where(rebuilds.c.rebuild_id == bindparam("wanted"), _free())
    .values(state=RebuildState.SUPERSEDED, finished_at=CLOCK, reason=bindparam("why"))
)
