"""The log of facts: compare-and-append in one statement, and the fold of a conversation."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from service.domain.conversation import Conversation, fold
from service.domain.errors import EverturnError, FenceLost, Internal, VersionConflict
from service.domain.events import ConversationEvent, ConversationId, Event, FleetEvent, TenantId
from service.store.codec import encode, to_json_text
from service.store.constraints import broken_constraint
from service.store.tables import (
    ONE_COMPLETION_PER_TURN,
    ONE_EVENT_PER_VERSION,
    ONE_PIN_PER_ATTEMPT,
    ONE_START_PER_TURN,
)
from service.store.timeline import read_recorded

# The head is compared before any row, and with it any number of the sequence, is drawn.
APPEND = text("""
    WITH head AS (
        SELECT coalesce(max(stream_version), 0) AS version
        FROM events WHERE tenant_id = :tenant AND stream = :stream
    ), appended AS (
        INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, content, tokens)
        SELECT :tenant, :stream, head.version + new.number, new.type, new.schema_number, :now,
               CAST(new.payload AS jsonb), new.content, new.tokens
        FROM head CROSS JOIN unnest(
            CAST(:types AS text[]), CAST(:schemas AS bigint[]), CAST(:payloads AS text[]),
            CAST(:contents AS bytea[]), CAST(:tokens AS bytea[])
        ) WITH ORDINALITY AS new (type, schema_number, payload, content, tokens, number)
        WHERE head.version = :expected
        ORDER BY new.number
    )
    SELECT version FROM head
""")

LOCK_STREAM = text("SELECT pg_advisory_xact_lock(hashtextextended(:stream, hashtextextended(:tenant, 0)))")


def append(
    conn: Connection,
    *,
    tenant: TenantId,
    stream: str,
    expected_version: int,
    events: Sequence[Event],
    now: datetime,
) -> int:
    """Returns the stream's new version.

    Raises:
        VersionConflict: the stream is not, or while we wrote no longer, at `expected_version`.
        FenceLost: a turn would start twice, pin one attempt twice, or complete twice.
    """
    rows = [encode(event) for event in events]
    parameters = {
        "tenant": tenant,
        "stream": stream,
        "expected": expected_version,
        "now": now,
        "types": [row.type for row in rows],
        "schemas": [row.schema_number for row in rows],
        "payloads": [to_json_text(row.payload) for row in rows],
        "contents": [row.content for row in rows],
        "tokens": [row.tokens for row in rows],
    }
    try:
        version: int = conn.execute(APPEND, parameters).scalar_one()
    except IntegrityError as error:
        raise _lost_race(error, stream) from error
    if version != expected_version:
        raise VersionConflict(
            f"Stream {stream} is at version {version}, not {expected_version}: read it again and decide anew."
        )
    return version + len(rows)


def read(conn: Connection, *, tenant: TenantId, stream: str, after_version: int = 0) -> list[Event]:
    """In order of their versions.

    Raises:
        Internal: an event that this version of the code cannot read.
    """
    recorded = read_recorded(conn, tenant=tenant, stream=stream, after_version=after_version)
    return [one.event for one in recorded]


def load_conversation(
    conn: Connection, tenant: TenantId, conversation: ConversationId, *, for_update: bool = False
) -> Conversation:
    """Version 0 if there is none. `for_update` makes other such loads wait until this transaction has ended."""
    if for_update:
        # In a statement of its own: what the next one sees must be newer than the wait.
        conn.execute(LOCK_STREAM, {"tenant": tenant, "stream": conversation})
    history = read(conn, tenant=tenant, stream=conversation)
    return fold(tenant, conversation, [_of_conversation(event, conversation) for event in history])


def _of_conversation(event: Event, conversation: ConversationId) -> ConversationEvent:
    if isinstance(event, FleetEvent):
        raise Internal(f"Conversation {conversation} holds a '{event.name}', which belongs to the fleet.")
    return event


def _lost_race(error: IntegrityError, stream: str) -> EverturnError:
    match broken_constraint(error):
        case str(name) if name == ONE_EVENT_PER_VERSION:
            return VersionConflict(f"Stream {stream} moved while it was appended to: read it again.")
        case str(name) if name in (ONE_START_PER_TURN, ONE_PIN_PER_ATTEMPT, ONE_COMPLETION_PER_TURN):
            return FenceLost(f"Stream {stream} was offered what its turn has done before ({name}).")
        case name:
            return Internal(f"Stream {stream} was offered an event that breaks {name}.")
