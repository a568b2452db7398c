"""A conversation in part: its head, for decisions, and its transcript, for a prompt; each from the events that it depends on.

A head is read in one statement whose work does not grow with the turns before; both are what the whole history folds to.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from struct import unpack
from typing import Any

from sqlalchemy import Connection

from service.domain.errors import Internal
from service.domain.events import (
    ConversationCreated,
    ConversationErased,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    ConversationUpdated,
    ItemDeleted,
    TenantId,
    TurnCompleted,
    TurnId,
    TurnStarted,
)
from service.domain.head import Head, advance_head, branch_head, head_of, with_older
from service.domain.transcript import Transcript, transcribe
from service.domain.turn import Turn, TurnEvent, advance
from service.store import ancestry
from service.store.ancestry import NEWEST
from service.store.codec import EventRow, decode
from service.store.event_store import load_conversation, lock_stream
from service.store.hot_statement import HotStatement
from service.store.timeline import is_erased

# Of one event. Never a join of all of a stream's: before statistics know long streams, PostgreSQL compares those pair by pair.
CONTENT = """
        SELECT content, tokens FROM event_contents AS c
        WHERE c.tenant_id = e.tenant_id AND c.stream = e.stream AND c.stream_version = e.stream_version
        OFFSET 0
    """

# As of a version. From the start of the last turn that was answered on, and before that what lasts. Of an answer, the output
# alone: its prompt is counted in the payload.
HEAD = """
    WITH answered AS (
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
            AND stream_version <= %(upto)s
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
            AND stream_version >= (SELECT stream_version FROM begun) AND stream_version <= %(upto)s
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

# Of a turn that is no part of its conversation's head, from its start to its end.
TURN = """
    WITH begun AS (
        SELECT stream, stream_version FROM events
        WHERE tenant_id = %(tenant)s AND payload ->> 'turn' = %(turn)s AND type = 'turn.started'
    ), ended AS (
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND payload ->> 'turn' = %(turn)s AND type = 'turn.completed'
        UNION ALL
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND payload ->> 'turn' = %(turn)s AND type = 'turn.failed'
    )
    SELECT e.stream, e.stream_version, e.type, e.schema_number, e.payload, CAST(NULL AS bytea) AS output
    FROM begun JOIN events AS e ON e.tenant_id = %(tenant)s AND e.stream = begun.stream
        AND e.stream_version >= begun.stream_version
        AND e.stream_version <= coalesce((SELECT stream_version FROM ended), %(newest)s)
    WHERE e.payload ->> 'turn' = %(turn)s
    ORDER BY e.stream_version
"""

# As of a version. Token ids from the last window on that extends none before it: those of earlier answers are in no prompt
# any more.
TRANSCRIPT = f"""
    WITH whole AS MATERIALIZED (
        SELECT coalesce((
            SELECT stream_version FROM events
            WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
                AND payload ->> 'extends' IS NULL AND stream_version <= %(upto)s
            ORDER BY stream_version DESC LIMIT 1
        ), 1) AS stream_version
    ), answered AS MATERIALIZED (
        SELECT coalesce((
            SELECT stream_version FROM events
            WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed' AND stream_version <= %(upto)s
            ORDER BY stream_version DESC LIMIT 1
        ), 0) AS stream_version
    ), failed AS (
        SELECT array_agg(payload ->> 'turn') AS turns FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.failed'
    )
    SELECT e.type, e.schema_number, e.payload, kept.content, CASE WHEN counts THEN kept.tokens END AS tokens, counts
    FROM events AS e LEFT JOIN LATERAL ({CONTENT}) AS kept ON true,
    LATERAL (SELECT e.stream_version >= (SELECT stream_version FROM whole) AS counts) AS of_window
    WHERE e.tenant_id = %(tenant)s AND e.stream = %(stream)s AND e.stream_version <= %(upto)s AND (
        e.type IN (
            'conversation.forked', 'conversation.erased', 'turn.parsed', 'turn.completed', 'item.deleted', 'turn.failed',
            'message.accepted', 'function_call.accepted', 'function_call_output.accepted', 'reasoning.accepted'
        )
        OR e.type = 'turn.asked' AND e.stream_version > (SELECT stream_version FROM answered)
        OR e.type = 'turn.started' AND e.payload ->> 'turn' = ANY ((SELECT turns FROM failed)::text[])
    )
    ORDER BY e.stream_version
"""  # noqa: S608 constants

METADATA = """
    SELECT e.type, e.schema_number, e.payload, kept.content
    FROM events AS e LEFT JOIN event_contents AS kept USING (tenant_id, stream, stream_version)
    WHERE e.tenant_id = %(tenant)s AND e.stream = %(stream)s AND e.type IN ('conversation.created', 'conversation.updated')
    ORDER BY e.stream_version DESC LIMIT 1
"""

# As of a version; `whole` where no window before this stream's own is a part of it.
WINDOW = f"""
    WITH whole AS (
        SELECT stream_version FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND type = 'turn.completed'
            AND payload ->> 'extends' IS NULL AND stream_version <= %(upto)s
        ORDER BY stream_version DESC LIMIT 1
    )
    SELECT coalesce(string_agg(kept.tokens, ''::bytea ORDER BY e.stream_version), ''::bytea) AS tokens,
        EXISTS (SELECT FROM whole) AS whole
    FROM events AS e, LATERAL ({CONTENT}) AS kept
    WHERE e.tenant_id = %(tenant)s AND e.stream = %(stream)s AND e.type = 'turn.completed'
        AND e.stream_version >= coalesce((SELECT stream_version FROM whole), 1) AND e.stream_version <= %(upto)s
"""  # noqa: S608 constants


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
    rows = _rows(conn, HEAD, tenant, conversation, NEWEST)
    line = ancestry.lineage(conn, tenant, conversation) if _forked(rows) else []
    if not _told_by_heads(conn, tenant, conversation, rows, line, upto=NEWEST):
        return head_of(load_conversation(conn, tenant, conversation), turn)
    beginning = _inherited(conn, tenant, conversation, line)
    head = _folded(beginning, rows)
    if not head.exists or turn is None or turn in head.turns:
        return head
    return _with_older(
        conn, head, turn, {conversation: NEWEST, **{one.conversation: one.version for one in line}}
    )


def load_head_as_of(conn: Connection, tenant: TenantId, conversation: ConversationId, version: int) -> Head:
    """As it was at that version; marked as erased, if it or what it inherits was since."""
    rows = _rows(conn, HEAD, tenant, conversation, version)
    line = ancestry.lineage(conn, tenant, conversation) if _forked(rows) else []
    if is_erased(conn, tenant, conversation) or not _told_by_heads(
        conn, tenant, conversation, rows, line, upto=version
    ):
        return head_of(ancestry.load_as_of(conn, tenant, conversation, version))
    return _folded(_inherited(conn, tenant, conversation, line), rows)


def load_metadata(conn: Connection, tenant: TenantId, conversation: ConversationId) -> Mapping[str, str]:
    """As its client last set it; empty if there is none, and of one that was erased."""
    row = conn.exec_driver_sql(METADATA, {"tenant": tenant, "stream": conversation}).one_or_none()
    if row is None:
        return {}
    event = decode(
        EventRow(type=row.type, schema_number=row.schema_number, payload=row.payload, content=row.content)
    )
    return event.metadata if isinstance(event, ConversationCreated | ConversationUpdated) else {}


def load_transcript(conn: Connection, tenant: TenantId, conversation: ConversationId) -> Transcript:
    """Empty if there is none, and of one that was erased."""
    rows = _rows(conn, TRANSCRIPT, tenant, conversation, NEWEST)
    line = ancestry.lineage(conn, tenant, conversation) if _forked(rows) else []
    if rows and rows[-1].type == ConversationErased.name:
        return Transcript()
    if any(one.erased for one in line):
        return Transcript.of(load_conversation(conn, tenant, conversation))
    parents = [_rows(conn, TRANSCRIPT, tenant, one.conversation, one.version) for one in reversed(line)]
    return transcribe(_told(row, conversation) for row in chain(*parents, rows))


def load_window(conn: Connection, tenant: TenantId, conversation: ConversationId) -> tuple[int, ...]:
    """The token ids of the transcript alone.

    Raises:
        Internal: not as many are stored as were counted.
    """
    head = load_head(conn, tenant, conversation)
    if head.window_tokens == 0:
        return ()
    line = ancestry.lineage(conn, tenant, conversation) if head.ancestors else []
    packed = b""
    # A turn may be accepted between the statements: what came after the head is not in its count.
    for stream, upto in ((conversation, head.version), *((one.conversation, one.version) for one in line)):
        [part] = _rows(conn, WINDOW, tenant, stream, upto)
        packed = part.tokens + packed
        if part.whole:
            break
    if len(packed) != 4 * head.window_tokens:
        raise Internal(
            f"Conversation {conversation} has a window of {head.window_tokens} tokens, and {len(packed) // 4} are stored."
        )
    return unpack(f"<{head.window_tokens}I", packed)


def _rows(
    conn: Connection, statement: str, tenant: TenantId, stream: ConversationId, upto: int
) -> Sequence[Any]:
    return _hot(statement).all(conn, {"tenant": tenant, "stream": stream, "upto": upto})


@cache
def _hot(statement: str) -> HotStatement:
    return HotStatement(statement)


def _forked(rows: Sequence[Any]) -> bool:
    return any(row.type == ConversationForked.name for row in rows)


def _told_by_heads(
    conn: Connection,
    tenant: TenantId,
    conversation: ConversationId,
    rows: Sequence[Any],
    line: Sequence[ancestry.Inherited],
    *,
    upto: int,
) -> bool:
    """Not where something that is inherited was erased, nor where a fork deleted an item before its last answer: whether that
    item was in the window then, its whole history tells.
    """
    if not line:
        return True
    if any(one.erased for one in line):
        return False
    seen = sum(row.type == ItemDeleted.name for row in rows)
    forks = [
        one for one in line[:-1] if ancestry.deleted_items(conn, tenant, one.conversation, upto=one.version)
    ]
    return not forks and len(ancestry.deleted_items(conn, tenant, conversation, upto=upto)) == seen


def _inherited(
    conn: Connection, tenant: TenantId, conversation: ConversationId, line: Sequence[ancestry.Inherited]
) -> Head:
    """What its own events are folded onto: of what is no fork, nothing."""
    oldest_first = line[::-1]
    head = Head(tenant=tenant, id=oldest_first[0].conversation if line else conversation)
    children = [*(one.conversation for one in oldest_first[1:]), conversation]
    for one, child in zip(oldest_first, children, strict=False):
        head = branch_head(_folded(head, _rows(conn, HEAD, tenant, one.conversation, one.version)), child)
    return head


def _folded(head: Head, rows: Sequence[Any]) -> Head:
    for row in rows:
        head = advance_head(head, _wordless(row, head.id), row.stream_version)
    return head


def _with_older(conn: Connection, head: Head, turn: TurnId, within: Mapping[ConversationId, int]) -> Head:
    """Args: within: the streams that its history is made of, and how far."""
    given = {"tenant": head.tenant, "turn": turn, "newest": NEWEST}
    rows = conn.exec_driver_sql(TURN, given).all()
    theirs = [row for row in rows if row.stream_version <= within.get(row.stream, 0)]
    begun, *later = (_wordless(row, head.id) for row in theirs) if theirs else (None,)
    if not isinstance(begun, TurnStarted):
        return head
    moved = Turn.of(begun)
    for event in later:
        if isinstance(event, TurnEvent):
            moved = advance(moved, event)
    return with_older(head, moved)


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
