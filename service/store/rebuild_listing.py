"""Rebuilds as an operator lists them."""

from sqlalchemy import Connection, select

from service.domain.plan import RebuildQueue
from service.store.rebuilds import Rebuild, RebuildState, rebuild_of
from service.store.tables import rebuilds


def list_newest(
    conn: Connection,
    *,
    state: RebuildState | None = None,
    queue: RebuildQueue | None = None,
    rollout: str | None = None,
    limit: int,
) -> list[Rebuild]:
    given = ((rebuilds.c.state, state), (rebuilds.c.queue, queue), (rebuilds.c.rollout_id, rollout))
    query = (
        select(rebuilds)
        .where(*(column == value for column, value in given if value is not None))
        .order_by(rebuilds.c.created_at.desc(), rebuilds.c.rebuild_id)
        .limit(limit)
    )
    return [rebuild_of(dict(row)) for row in conn.execute(query).mappings()]
