"""The audit views as rows for JSON, by the names and filters that are listed here; what an auditor may read over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, column, select, table

from service.domain.errors import InvalidInput, NotFound

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    order: str
    """A column without ties, by which pages follow each other."""
    filters: tuple[str, ...] = ()
    wide: bool = False
    """Whether a row takes so many look-ups that a page's place is found before its rows are made."""


OF_TURN = ("tenant_id", "conversation_id", "turn_id")

VIEWS: Mapping[str, View] = {
    "turn_provenance": View(order="position", filters=OF_TURN, wide=True),
    "cross_revision_hits": View(order="position", filters=OF_TURN),
    "contracts_used": View(order="position", filters=OF_TURN),
    "refusals": View(order="position", filters=OF_TURN),
    "turn_tokens": View(order="position", filters=OF_TURN),
    "turns": View(order="position", filters=OF_TURN),
    "attempts": View(order="position", filters=OF_TURN),
    "decisions": View(order="position", filters=OF_TURN),
    "rebuild_cost": View(order="position", filters=OF_TURN),
    "rebuild_jobs": View(order="rebuild_id", filters=OF_TURN),
    "artifacts": View(order="position", filters=(*OF_TURN, "artifact_id")),
    "erasures": View(order="position", filters=("tenant_id", "conversation_id")),
    "forks": View(order="position", filters=("tenant_id", "conversation_id", "parent_id")),
    "kv_deletions": View(
        order="artifact_id", filters=("tenant_id", "conversation_id", "artifact_id", "state")
    ),
    "alias_history": View(order="position", filters=("alias",)),
    "rollouts": View(order="position", filters=("rollout_id", "alias")),
    "rollout_turns": View(order="position", filters=(*OF_TURN, "rollout_id")),
    "engines": View(order="position", filters=("engine", "revision")),
    "engine_adapters": View(order="position", filters=("engine", "model", "revision")),
    "revisions": View(order="revision", filters=("revision", "label")),
    "tenants": View(order="tenant_id", filters=("tenant_id",)),
    "tenant_policies": View(order="position", filters=("tenant_id",)),
    "tenant_storage": View(order="tenant_id", filters=("tenant_id",)),
    "keys": View(order="key_id", filters=("tenant_id", "scope")),
    "chain_breaks": View(order="position", filters=("tenant_id", "stream")),
}

OF_CONVERSATION = (
    "turns",
    "attempts",
    "decisions",
    "turn_provenance",
    "refusals",
    "rebuild_cost",
    "erasures",
    "forks",
)
"""What a report on one conversation is made of."""


def read_view(
    conn: Connection, name: str, *, filters: Mapping[str, str], after: str | None, limit: int
) -> list[Row]:
    """Args:
    after: of the last row that was read, the value of the view's `order` column.

    Raises:
        NotFound: no such view.
        InvalidInput: a filter that it does not have.
    """
    view = VIEWS.get(name)
    if view is None:
        raise NotFound("audit view", name)
    for given in filters:
        if given not in view.filters:
            raise InvalidInput(
                f"View '{name}' is not filtered by '{given}', only by: {', '.join(view.filters)}.", given
            )
    conditions: list[ColumnElement[bool]] = [column(key, Text) == value for key, value in filters.items()]
    order: ColumnElement[Any] = column(view.order)
    if after is not None:
        conditions.append(order > (_position(after) if view.order == "position" else after))
    source = table(name, schema="audit")
    if view.wide and not filters:
        place = select(order).select_from(source).where(*conditions).order_by(order).limit(limit)
        page = conn.execute(place).scalars().all()
        if not page:
            return []
        conditions = [order.between(page[0], page[-1])]
    query = select("*").select_from(source).where(*conditions).order_by(order).limit(limit)
    return [_plain(row) for row in conn.execute(query).mappings()]


def read_conversation(conn: Connection, conversation: str) -> dict[str, list[Row]]:
    """Of every view that tells of conversations, what it tells of this one, and of the alias and engines it met.

    `forked_into` are the forks that were made of it.

    Raises:
        NotFound: no turn of it was ever accepted, nor is it a fork.
    """
    found = {
        name: read_view(conn, name, filters={"conversation_id": conversation}, after=None, limit=10_000)
        for name in OF_CONVERSATION
    }
    told = found["turns"] or found["forks"]
    if not told:
        raise NotFound("conversation with a turn", conversation)
    tenant = told[0]["tenant_id"]
    found["forked_into"] = read_view(
        conn, "forks", filters={"tenant_id": tenant, "parent_id": conversation}, after=None, limit=10_000
    )
    found["chain_breaks"] = read_view(
        conn, "chain_breaks", filters={"tenant_id": tenant, "stream": conversation}, after=None, limit=10
    )
    revisions = {row["revision"] for row in found["attempts"]}
    every = read_view(conn, "revisions", filters={}, after=None, limit=10_000)
    found["revisions"] = [
        {name: value for name, value in row.items() if name != "descriptor"}
        for row in every
        if row["revision"] in revisions
    ]
    return found


def _position(text: str) -> int:
    if not text.isdecimal():
        raise InvalidInput("'after' must be the 'position' of the last row that was read.", "after")
    return int(text)


def _plain(row: Mapping[Any, Any]) -> Row:
    return {str(name): for_json(value) for name, value in row.items()}


def for_json(value: Any) -> Any:
    """What JSON has no kind for, as this product writes it; the rest as it is."""
    match value:
        case datetime():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case _:
            return value
