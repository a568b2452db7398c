"""A stream with the times of its events, for answers that show when something was."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from service.domain.events import Event, TenantId
from service.store.codec import EventRow, decode
from service.store.tables import events


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    event: Event
    occurred_at: datetime


def read_recorded(
    conn: Connection, *, tenant: TenantId, stream: str, after_version: int = 0
) -> list[Recorded]:
    """In order of their versions; empty where there is no such stream.

    Raises:
        Internal: an event that this version of the code cannot read.
    """
    columns = (events.c.type, events.c.schema_number, events.c.payload, events.c.content, events.c.tokens)
    query = (
        select(events.c.occurred_at, *columns)
        .where(
            events.c.tenant_id == tenant, events.c.stream == stream, events.c.stream_version > after_version
        )
        .order_by(events.c.stream_version)
    )
    return [
        Recorded(
            event=decode(
                EventRow(type=name, schema_number=number, payload=payload, content=content, tokens=tokens)
            ),
            occurred_at=occurred_at,
        )
        for occurred_at, name, number, payload, content, tokens in conn.execute(query)
    ]
