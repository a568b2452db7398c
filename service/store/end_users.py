"""Finds the conversations of a person by what the client wrote into their metadata; there is no other trace of who spoke."""

from sqlalchemy import Connection, text

from service.domain.events import ConversationCreated, ConversationId, ConversationUpdated, TenantId
from service.store.codec import EventRow, decode

WITH_METADATA = text("""
    SELECT e.stream, e.type, e.schema_number, e.payload, kept.content
    FROM events AS e LEFT JOIN event_contents AS kept USING (tenant_id, stream, stream_version)
    WHERE e.tenant_id = :tenant AND e.type IN ('conversation.created', 'conversation.updated')
    ORDER BY e.stream, e.stream_version
""")
FETCHED_ROWS = 1000


def conversations_of(conn: Connection, *, tenant: TenantId, key: str, value: str) -> list[ConversationId]:
    """Those whose metadata have, or ever had, this value; without those that were erased. Reads all of the tenant's."""
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    found = dict[ConversationId, None]()
    rows = conn.execute(WITH_METADATA, {"tenant": tenant}, execution_options={"yield_per": FETCHED_ROWS})
    for stream, name, number, payload, content in rows:
        event = decode(EventRow(type=name, schema_number=number, payload=payload, content=content))
        if isinstance(event, ConversationCreated | ConversationUpdated) and event.metadata.get(key) == value:
            found[ConversationId(stream)] = None
    return list(found)
