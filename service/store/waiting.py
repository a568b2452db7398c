"""The turns that wait for an engine, as a line for each alias; of all tenants, so only for a transaction that may see them."""

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, and_, func, literal_column, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from service.domain.events import TurnId, TurnPinned, TurnStarted
from service.store.tables import events, turns


def waiting_lines(conn: Connection) -> dict[str, list[TurnId]]:
    """By alias, longest waiting first. A turn waits that is open and has no attempt yet."""
    started, pinned = events.alias("started"), events.alias("pinned")
    in_order = aggregate_order_by(turns.c.turn_id, turns.c.opened_at, turns.c.turn_id)
    alias = started.c.payload["alias"].astext
    query = (
        select(alias.label("alias"), func.array_agg(in_order).label("line"))
        .join_from(turns, started, _of_turn(started.c, TurnStarted.name))
        .where(
            ~turns.c.closed,
            ~select(pinned.c.position).where(_of_turn(pinned.c, TurnPinned.name)).exists(),
        )
        .group_by(alias)
    )
    return {row.alias: row.line for row in conn.execute(query)}


def _of_turn(columns: ReadOnlyColumnCollection[str, Column[Any]], name: str) -> ColumnElement[bool]:
    return and_(
        columns.payload["turn"].astext == turns.c.turn_id,
        columns.tenant_id == turns.c.tenant_id,
        # A literal: the planner must see that the partial index applies.
        columns.type == literal_column(f"'{name}'"),
    )
