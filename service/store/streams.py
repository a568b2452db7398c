"""Streams found by how their names begin."""

from sqlalchemy import Connection, select

from service.domain.events import TenantId
from service.store.tables import events

AFTER_HEX = "g"


def find_stream_beginning(conn: Connection, tenant: TenantId, beginning: str) -> str | None:
    """Of streams whose names go on in hex digits, the first; read from the index of versions, which has them in order."""
    stream = events.c.stream
    query = (
        select(stream)
        .where(events.c.tenant_id == tenant, stream >= beginning, stream < beginning + AFTER_HEX)
        .order_by(stream)
        .limit(1)
    )
    found: str | None = conn.execute(query).scalar_one_or_none()
    return found
