"""A conversation in part: its head, for decisions, and its transcript, for a prompt; each from the events that it depends on.

A head is read in one statement whose work does not grow with the turns before; both are what the whole history folds to.
"""

from struct import unpack
from typing import Any

from sqlalchemy import Connection

from service.domain.errors import Internal
from service.domain.events import (
    ConversationErased,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    TenantId,
    TurnCompleted,
    TurnId,
)
from service.domain.head import Head, advance_head, head_of
from service.domain.transcript import Transcript, transcribe
from service.store.codec import EventRow, decode
from service.store.event_store import load_conversation, lock_stream

# From the start of the last turn that was answered on, and before that what lasts. Of an answer, the output alone: its prompt
# is counted in the payload.
HEAD = """
    WITH answered AS (
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
        ORDER BY stream_version DESC LIMIT 1
    ), begun AS (
        SELECT coalesce((
            SELECT stream_version FROM events
            WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.started'
                AND stream_version < (SELECT stream_version FROM answered)
            ORDER BY stream_version DESC LIMIT 1
        ), 1) AS stream_version
    ), picked AS (
        SELECT stream_version, type, schema_number, payload FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s
            AND stream_version >= (SELECT stream_version FROM begun)
        UNION ALL
        SELECT stream_version, type, schema_number, payload FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s
            AND stream_version < (SELECT stream_version FROM begun)
            AND type IN ('conversation.forked', 'conversation.deleted', 'conversation.erased', 'response.deleted', 'kv.refused')
        UNION ALL
        SELECT stream_version, type, schema_number, payload FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s
            AND stream_version = 1 AND (SELECT stream_version FROM begun) > 1
    )
    SELECT stream_version, type, schema_number, payload, CASE WHEN type = 'turn.completed' THEN (
        SELECT substr(kept.tokens, 4 * CAST(payload ->> 'prompt_delta' AS integer) + 1) FROM event_contents AS kept
        WHERE kept.tenant_id = %(tenant)s AND kept.stream = %(stream)s AND kept.stream_version = picked.stream_version
    ) END AS output
    FROM picked ORDER BY stream_version
"""

# Token ids from the last window on that extends none before it: those of earlier answers are in no prompt any more.
TRANSCRIPT = """
    WITH whole AS MATERIALIZED (
        SELECT coalesce((
            SELECT stream_version FROM events
            WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
                AND payload ->> 'extends' IS NULL
            ORDER BY stream_version DESC LIMIT 1
        ), 1) AS stream_version
    ), failed AS (
        SELECT array_agg(payload ->> 'turn') AS turns FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.failed'
    )
    SELECT e.type, e.schema_number, e.payload, kept.content, CASE WHEN counts THEN kept.tokens END AS tokens, counts
    FROM events AS e
    LEFT JOIN event_contents AS kept USING (tenant_id, stream, stream_version),
    LATERAL (SELECT e.stream_version >= (SELECT stream_version FROM whole) AS counts) AS of_window
    WHERE e.tenant_id = %(tenant)s AND e.stream = %(stream)s AND (
        e.type IN ('conversation.forked', 'conversation.erased', 'message.accepted', 'turn.completed', 'item.deleted', 'turn.failed')
        OR e.type = 'turn.started' AND e.payload ->> 'turn' = ANY ((SELECT turns FROM failed)::text[])
    )
    ORDER BY e.stream_version
"""

WINDOW = """
    SELECT string_agg(kept.tokens, ''::bytea ORDER BY e.stream_version) FROM events AS e
    JOIN event_contents AS kept USING (tenant_id, stream, stream_version)
    WHERE e.tenant_id = %(tenant)s AND e.stream = %(stream)s AND e.type = 'turn.completed' AND e.stream_version >= (
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
            AND payload ->> 'extends' IS NULL
        ORDER BY stream_version DESC LIMIT 1
    )
"""


def load_head(
    conn: Connection,
    tenant: TenantId,
    conversation: ConversationId,
    *,
    for_update: bool = False,
    turn: TurnId | None = None,
) -> Head:
    """Version 0 if there is none. `for_update` makes other such loads wait until this transaction has ended.

    `turn` is in it, if it is in the conversation.
    """
    if for_update:
        lock_stream(conn, tenant, conversation)
    head = Head(tenant=tenant, id=conversation)
    for row in conn.exec_driver_sql(HEAD, {"tenant": tenant, "stream": conversation}):
        event = _wordless(row, conversation)
        if isinstance(event, ConversationForked):
            return _of_whole(conn, tenant, conversation, turn)
        head = advance_head(head, event, row.stream_version)
    if head.exists and turn is not None and turn not in head.turns:
        return _of_whole(conn, tenant, conversation, turn)
    return head


def load_transcript(conn: Connection, tenant: TenantId, conversation: ConversationId) -> Transcript:
    """Empty if there is none, and of one that was erased."""
    rows = conn.exec_driver_sql(TRANSCRIPT, {"tenant": tenant, "stream": conversation}).all()
    if any(row.type == ConversationForked.name for row in rows):
        return Transcript.of(load_conversation(conn, tenant, conversation))
    if rows and rows[-1].type == ConversationErased.name:
        return Transcript()
    return transcribe(_told(row, conversation) for row in rows)


def load_window(conn: Connection, tenant: TenantId, conversation: ConversationId) -> tuple[int, ...]:
    """The token ids of the transcript alone.

    Raises:
        Internal: not as many are stored as were counted.
    """
    head = load_head(conn, tenant, conversation)
    if head.window_tokens == 0:
        return ()
    packed = conn.exec_driver_sql(WINDOW, {"tenant": tenant, "stream": conversation}).scalar_one() or b""
    if len(packed) != 4 * head.window_tokens:
        raise Internal(
            f"Conversation {conversation} has a window of {head.window_tokens} tokens, and {len(packed) // 4} are stored."
        )
    return unpack(f"<{head.window_tokens}I", packed)


def _of_whole(conn: Connection, tenant: TenantId, conversation: ConversationId, turn: TurnId | None) -> Head:
    """For what is no part of a head: an older turn, and what a fork inherits."""
    return head_of(load_conversation(conn, tenant, conversation), turn)


def _wordless(row: Any, conversation: ConversationId) -> ConversationEvent:
    payload = row.payload
    if row.type == TurnCompleted.name:
        payload = payload | {"prompt_delta": 0}
    stored = EventRow(type=row.type, schema_number=row.schema_number, payload=payload, tokens=row.output)
    return _of_conversation(decode(stored, erased=True), conversation)


def _told(row: Any, conversation: ConversationId) -> ConversationEvent:
    stored = EventRow(
        type=row.type,
        schema_number=row.schema_number,
        payload=row.payload,
        content=row.content,
        tokens=row.tokens,
    )
    return _of_conversation(decode(stored, tokenless=not row.counts), conversation)


def _of_conversation(event: object, conversation: ConversationId) -> ConversationEvent:
    if not isinstance(event, ConversationEvent):
        raise Internal(f"Conversation {conversation} holds an event that belongs to the fleet.")
    return event
