"""The log of facts: compare, chain and append in one statement, and the fold of a conversation."""

from collections.abc import Sequence
from datetime import datetime
from secrets import token_bytes

from sqlalchemy import Connection, delete, text
from sqlalchemy.exc import IntegrityError

from service.domain.conversation import Conversation
from service.domain.errors import EverturnError, FenceLost, Internal, VersionConflict
from service.domain.events import ConversationId, Event, TenantId
from service.store import ancestry
from service.store.chain import SALT_BYTES, Content
from service.store.codec import EventRow, encode, to_json_text
from service.store.constraints import broken_constraint
from service.store.tables import (
    ONE_COMPLETION_PER_TURN,
    ONE_CONTENT_PER_VERSION,
    ONE_EVENT_PER_VERSION,
    ONE_PIN_PER_ATTEMPT,
    ONE_START_PER_TURN,
    event_contents,
)
from service.store.timeline import read_recorded

# The head is compared before any row, and with it any number of the sequence, is drawn. In the driver's own form: it is the hot path.
APPEND = """
    WITH head AS (
        SELECT coalesce(last.stream_version, 0) AS version, coalesce(last.chain, '\\x'::bytea) AS chain,
               last.type, last.occurred_at
        FROM (VALUES (true)) AS always LEFT JOIN LATERAL (
            SELECT stream_version, chain, type, occurred_at
            FROM events WHERE tenant_id = %(tenant)s AND stream = %(stream)s
            ORDER BY stream_version DESC LIMIT 1
        ) AS last ON true
    ), added AS (
        SELECT head.version + new.number AS version, head.chain AS previous, new.type, new.schema_number,
               CAST(new.payload AS jsonb) AS payload, new.salt, new.content, new.tokens, new.commitment
        FROM head CROSS JOIN unnest(
            CAST(%(types)s AS text[]), CAST(%(schemas)s AS bigint[]), CAST(%(payloads)s AS text[]), CAST(%(salts)s AS bytea[]),
            CAST(%(contents)s AS bytea[]), CAST(%(tokens)s AS bytea[]), CAST(%(commitments)s AS bytea[])
        ) WITH ORDINALITY AS new (type, schema_number, payload, salt, content, tokens, commitment, number)
        WHERE head.version = %(expected)s
    ), appended AS (
        INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload,
                            commitment, chain)
        SELECT %(tenant)s, %(stream)s, version, type, schema_number, %(now)s, payload, commitment,
               audit.chained(previous, audit.event_digest(
                   %(tenant)s, %(stream)s, version, type, schema_number, %(now)s, payload, commitment
               )) OVER (ORDER BY version)
        FROM added ORDER BY version
    ), kept AS (
        INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens)
        SELECT %(tenant)s, %(stream)s, version, salt, content, tokens FROM added WHERE salt IS NOT NULL
    )
    SELECT version, type, occurred_at FROM head
"""

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
    contents = [_content(row) for row in rows]
    parameters = {
        "tenant": tenant,
        "stream": stream,
        "expected": expected_version,
        "now": now,
        "types": [row.type for row in rows],
        "schemas": [row.schema_number for row in rows],
        "payloads": [to_json_text(row.payload) for row in rows],
        "salts": [kept and kept.salt for kept in contents],
        "contents": [kept and kept.content for kept in contents],
        "tokens": [kept and kept.tokens for kept in contents],
        "commitments": [kept and kept.commitment() for kept in contents],
    }
    try:
        head = conn.exec_driver_sql(APPEND, parameters).one()
    except IntegrityError as error:
        raise _lost_race(error, stream) from error
    version: int = head.version
    if version != expected_version:
        last = f", where '{head.type}' of {head.occurred_at:%Y-%m-%d %H:%M:%S} was last" if version else ""
        raise VersionConflict(
            f"Stream {stream} is at version {version}{last}, not {expected_version}: read it again and decide anew."
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
        lock_stream(conn, tenant, conversation)
    history = read(conn, tenant=tenant, stream=conversation)
    return ancestry.fold(conn, tenant, conversation, history)


def lock_stream(conn: Connection, tenant: TenantId, stream: str) -> None:
    """Until the transaction ends. In a statement of its own: what the next one sees must be newer than the wait."""
    conn.execute(LOCK_STREAM, {"tenant": tenant, "stream": stream})


def _content(row: EventRow) -> Content | None:
    if row.content is None and row.tokens is None:
        return None
    return Content(salt=token_bytes(SALT_BYTES), content=row.content, tokens=row.tokens)


def erase_contents(conn: Connection, *, tenant: TenantId, stream: str) -> int:
    """Returns how many events lost their content; the database refuses it for a stream without a tombstone."""
    query = delete(event_contents).where(
        event_contents.c.tenant_id == tenant, event_contents.c.stream == stream
    )
    return conn.execute(query).rowcount


def _lost_race(error: IntegrityError, stream: str) -> EverturnError:
    match broken_constraint(error):
        case str(name) if name in (ONE_EVENT_PER_VERSION, ONE_CONTENT_PER_VERSION):
            return VersionConflict(f"Stream {stream} moved while it was appended to: read it again.")
        case str(name) if name in (ONE_START_PER_TURN, ONE_PIN_PER_ATTEMPT, ONE_COMPLETION_PER_TURN):
            return FenceLost(f"Stream {stream} was offered what its turn has done before ({name}).")
        case name:
            return Internal(f"Stream {stream} was offered an event that breaks {name}.")
