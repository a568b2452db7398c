"""As service.store.warm_ups: a warm-up's rebuild as a turn finds it that could do without."""

from service.domain.events import ConversationId, TenantId
from service.domain.plan import RebuildQueue, WarmUp
from service.domain.revision import RevisionDigest
from service.store.rebuilds import RebuildState
from service.store.warm_ups import Found
from tests.simulation.rebuild_rows import end, stale
from tests.simulation.tables import RebuildRow, Session


def find(
    conn: Session, tenant: TenantId, conversation: ConversationId, revision: RevisionDigest
) -> Found | None:
    known = conn.tables.active_rebuilds.get((tenant, conversation, revision))
    if known is None:
        return None
    row = conn.tables.rebuilds[known]
    if row.seen.queue is not RebuildQueue.BACKGROUND:
        return None
    warm_up = WarmUp(tokens_total=row.seen.tokens_total, tokens_done=row.seen.tokens_done)
    return Found(rebuild=known, held=not _free(conn, row), warm_up=warm_up)


def call_off(conn: Session, rebuild: str, reason: str) -> None:
    row = conn.tables.rebuilds[rebuild]
    if _free(conn, row):
        end(conn, row, RebuildState.SUPERSEDED, reason)


def _free(conn: Session, row: RebuildRow) -> bool:
    return row.seen.state is RebuildState.QUEUED or stale(conn, row)
