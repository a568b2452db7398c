"""A stream with the times of its events, for answers that show when something was."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select, true

from service.domain.events import ConversationErased, Event, TenantId
from service.store.codec import EventRow, decode
from service.store.hot_statement import HotStatement
from service.store.tables import event_contents, events

# Built once: what every turn comes by.
_OF_STREAM = (events.c.tenant_id == bindparam("tenant"), events.c.stream == bindparam("stream"))
_SAME_EVENT = and_(
    *(event_contents.c[key] == events.c[key] for key in ("tenant_id", "stream", "stream_version"))
)
# Looked up for each event (OFFSET 0 holds PostgreSQL to that), as in heads.CONTENT.
_KEPT = select(event_contents.c.content, event_contents.c.tokens).where(_SAME_EVENT).offset(0).lateral("kept")
STREAM = (
    select(
        *(events.c.occurred_at, events.c.type, events.c.schema_number, events.c.payload),
        *(_KEPT.c.content, _KEPT.c.tokens),
    )
    .select_from(events.outerjoin(_KEPT, true()))
    .where(*_OF_STREAM)
    .order_by(events.c.stream_version)
)
LATER = STREAM.where(events.c.stream_version > bindparam("after"))
TOMBSTONE = HotStatement(
    select(events.c.position).where(*_OF_STREAM, events.c.type == ConversationErased.name)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    event: Event
    occurred_at: datetime


def read_recorded(
    conn: Connection, *, tenant: TenantId, stream: str, after_version: int = 0
) -> list[Recorded]:
    """In order of their versions; empty where there is no such stream. Erased content comes back empty.

    Raises:
        Internal: an event that this version of the code cannot read.
    """
    rows = conn.execute(LATER, {"tenant": tenant, "stream": stream, "after": after_version}).all()
    return _recorded(rows, erased=bool(rows) and rows[-1].type == ConversationErased.name)


def read_as_far_as(
    conn: Connection, *, tenant: TenantId, stream: str, version: int
) -> tuple[list[Event], ConversationErased | None]:
    """The events up to that version, and the tombstone if the stream was erased after it.

    Raises:
        Internal: an event that this version of the code cannot read.
    """
    place = {"tenant": tenant, "stream": stream}
    rows = conn.execute(STREAM.where(events.c.stream_version <= version), place).all()
    # After the rows: what was erased between the two is taken for erased.
    found = conn.execute(STREAM.where(events.c.type == ConversationErased.name), place).all()
    tombstones = [one.event for one in _recorded(found) if isinstance(one.event, ConversationErased)]
    history = [one.event for one in _recorded(rows, erased=bool(tombstones))]
    return history, tombstones[0] if tombstones else None


def is_erased(conn: Connection, tenant: TenantId, stream: str) -> bool:
    """By a tombstone of its own: a fork may have lost what it inherits before."""
    return TOMBSTONE.one_or_none(conn, {"tenant": tenant, "stream": stream}) is not None


def _recorded(rows: Sequence[Any], *, erased: bool = False) -> list[Recorded]:
    return [
        Recorded(
            event=decode(
                EventRow(type=name, schema_number=number, payload=payload, content=content, tokens=tokens),
                erased=erased,
            ),
            occurred_at=occurred_at,
        )
        for occurred_at, name, number, payload, content, tokens in rows
    ]
