"""A stream with the times of its events, for answers that show when something was."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, select

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
    columns = (
        *(events.c.occurred_at, events.c.type, events.c.schema_number, events.c.payload),
        *(event_contents.c.content, event_contents.c.tokens),
    )
    same_event = and_(
        *(event_contents.c[key] == events.c[key] for key in ("tenant_id", "stream", "stream_version"))
    )
    query = (
        select(*columns)
        .select_from(events.outerjoin(event_contents, same_event))
        .where(
            events.c.tenant_id == tenant, events.c.stream == stream, events.c.stream_version > after_version
        )
        .order_by(events.c.stream_version)
    )
    rows = conn.execute(query).all()
    erased = bool(rows) and rows[-1].type == ConversationErased.name
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
