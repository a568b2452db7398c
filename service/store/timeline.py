"""A stream with the times of its events, for answers that show when something was."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, select

from service.domain.events import ConversationErased, Event, TenantId
from service.store.codec import EventRow, decode
from service.store.tables import event_contents, events


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
    rows = conn.execute(_stream(tenant, stream).where(events.c.stream_version > after_version)).all()
    return _recorded(rows, erased=bool(rows) and rows[-1].type == ConversationErased.name)


def read_as_far_as(
    conn: Connection, *, tenant: TenantId, stream: str, version: int
) -> tuple[list[Event], ConversationErased | None]:
    """The events up to that version, and the tombstone if the stream was erased after it.

    Raises:
        Internal: an event that this version of the code cannot read.
    """
    rows = conn.execute(_stream(tenant, stream).where(events.c.stream_version <= version)).all()
    # After the rows: what was erased between the two is taken for erased.
    found = conn.execute(_stream(tenant, stream).where(events.c.type == ConversationErased.name)).all()
    tombstones = [one.event for one in _recorded(found) if isinstance(one.event, ConversationErased)]
    history = [one.event for one in _recorded(rows, erased=bool(tombstones))]
    return history, tombstones[0] if tombstones else None


def is_erased(conn: Connection, tenant: TenantId, stream: str) -> bool:
    """By a tombstone of its own: a fork may have lost what it inherits before."""
    tombstone = select(events.c.position).where(
        events.c.tenant_id == tenant, events.c.stream == stream, events.c.type == ConversationErased.name
    )
    return conn.execute(tombstone).one_or_none() is not None


def _stream(tenant: TenantId, stream: str) -> Select[Any]:
    same_event = and_(
        *(event_contents.c[key] == events.c[key] for key in ("tenant_id", "stream", "stream_version"))
    )
    return (
        select(
            *(events.c.occurred_at, events.c.type, events.c.schema_number, events.c.payload),
            *(event_contents.c.content, event_contents.c.tokens),
        )
        .select_from(events.outerjoin(event_contents, same_event))
        .where(events.c.tenant_id == tenant, events.c.stream == stream)
        .order_by(events.c.stream_version)
    )


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
