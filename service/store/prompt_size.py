"""How much longer a conversation's next prompt may be than what it was answered on last."""

from sqlalchemy import Connection, text

from service.domain.events import ConversationId, TenantId

NEW_BYTES = text("""
    SELECT coalesce(sum(octet_length(kept.content)), 0)::bigint
    FROM events AS e, LATERAL (
        SELECT content FROM event_contents AS c
        WHERE c.tenant_id = e.tenant_id AND c.stream = e.stream AND c.stream_version = e.stream_version
        OFFSET 0
    ) AS kept
    WHERE e.tenant_id = :tenant AND e.stream = :stream AND e.type = 'message.accepted' AND e.stream_version > coalesce((
        SELECT stream_version FROM events
        WHERE tenant_id = :tenant AND stream = :stream AND type = 'turn.completed'
        ORDER BY stream_version DESC LIMIT 1
    ), 0)
""")


def new_bytes(conn: Connection, tenant: TenantId, conversation: ConversationId) -> int:
    """Of the messages after the last answer, those of failed turns too: at least as many as their tokens."""
    found: int = conn.execute(NEW_BYTES, {"tenant": tenant, "stream": conversation}).scalar_one()
    return found
