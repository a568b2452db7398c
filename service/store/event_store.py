"""The log of facts: compare, chain and append in one statement, and the fold of a conversation."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from secrets import token_bytes
from typing import Any

from sqlalchemy import Connection, delete
from sqlalchemy.exc import IntegrityError

from service.domain.conversation import Conversation
from service.domain.errors import EverturnError, FenceLost, Internal, VersionConflict
from service.domain.events import ConversationId, Event, TenantId, TurnCompleted, TurnPinned, TurnStarted
from service.store import ancestry
from service.store.chain import SALT_BYTES, Content
from service.store.codec import EventRow, encode, to_json_text
from service.store.constraints import broken_constraint
from service.store.hot_statement import HotStatement
from service.store.tables import (
    ONE_COMPLETION_PER_TURN,
    ONE_CONTENT_PER_VERSION,
    ONE_EVENT_PER_VERSION,
    ONE_PIN_PER_ATTEMPT,
    ONE_START_PER_TURN,
    event_contents,
)
from service.store.timeline import read_recorded
from service.store.winner import Once, describe_holder, describe_winner

AT_ONCE = 8
"""Events of one statement. Each number of them has a statement of its own, so that each can be prepared."""

# The head is compared before any row, and with it any number of the sequence, is drawn. In the driver's own form, and without
# arrays, which take the driver longer than all else: it is the hot path.
APPEND = """
    WITH head AS (
        SELECT coalesce(last.stream_version, 0) AS version, coalesce(last.chain, '\\x'::bytea) AS chain,
               last.type, last.occurred_at
        FROM (VALUES (true)) AS always LEFT JOIN LATERAL (
            SELECT stream_version, chain, type, occurred_at
            FROM events WHERE tenant_id = %(tenant)s AND stream = %(stream)s
            ORDER BY stream_version DESC LIMIT 1
        ) AS last ON true
    ), link0 AS (
        SELECT version, chain, CAST(NULL AS text) AS type, CAST(NULL AS bigint) AS schema_number,
               CAST(NULL AS jsonb) AS payload, CAST(NULL AS bytea) AS commitment
        FROM head WHERE version = %(expected)s
    ){links}, appended AS (
        INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload,
                            commitment, chain)
        SELECT %(tenant)s, %(stream)s, version, type, schema_number, %(now)s, payload, commitment, chain
        FROM (SELECT * FROM link0 WHERE false {linked}) AS added
    ), kept AS (
        INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens)
        SELECT %(tenant)s, %(stream)s, version + number, salt, content, tokens
        FROM link0 CROSS JOIN (
            VALUES (CAST(NULL AS bigint), CAST(NULL AS bytea), CAST(NULL AS bytea), CAST(NULL AS bytea)) {contents}
        ) AS new (number, salt, content, tokens)
        WHERE salt IS NOT NULL
    )
    SELECT version, type, occurred_at FROM head
"""
LINK = """, link{number} AS (
        SELECT before.version + 1 AS version, audit.chain_link(NULL, before.chain, audit.event_digest(
                   %(tenant)s, %(stream)s, before.version + 1, new.type, new.schema_number, %(now)s, new.payload, new.commitment
               )) AS chain,
               new.type, new.schema_number, new.payload, new.commitment
        FROM link{before} AS before CROSS JOIN (
            SELECT CAST(%(type{number})s AS text) AS type, CAST(%(schema{number})s AS bigint) AS schema_number,
                   CAST(%(payload{number})s AS jsonb) AS payload, CAST(%(commitment{number})b AS bytea) AS commitment
        ) AS new
    )"""
CONTENT = ", ({number}, %(salt{number})b, %(content{number})b, %(tokens{number})b)"

LOCK_STREAM = HotStatement(
    "SELECT pg_advisory_xact_lock(hashtextextended(%(stream)s, hashtextextended(%(tenant)s, 0)))"
)


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
        VersionConflict: the stream is not, or while we wrote no longer, at `expected_version`. In the second case the
            transaction has been rolled back, as far as its innermost savepoint.
        FenceLost: a turn would start twice, pin one attempt twice, or complete twice. Rolled back likewise.
    """
    for first in range(0, len(events) or 1, AT_ONCE):
        place = {"tenant": tenant, "stream": stream, "expected": expected_version + first, "now": now}
        _append(conn, place, events[first : first + AT_ONCE])
    return expected_version + len(events)


def _append(conn: Connection, place: dict[str, Any], events: Sequence[Event]) -> None:
    stream, expected_version = place["stream"], place["expected"]
    parameters = dict(place)
    for number, event in enumerate(events, 1):
        parameters |= _parameters(event, number)
    try:
        head = _statement(len(events)).one(conn, parameters)
    except IntegrityError as error:
        raise _lost_race(conn, error, place, events) from error
    version: int = head.version
    if version != expected_version:
        last = f", where '{head.type}' of {head.occurred_at:%Y-%m-%d %H:%M:%S} was last" if version else ""
        raise VersionConflict(
            f"Stream {stream} is at version {version}{last}, not {expected_version}: read it again and decide anew."
        )


@cache
def _statement(events: int) -> HotStatement:
    numbers = range(1, events + 1)
    appended = APPEND.format(
        links="".join(LINK.format(number=number, before=number - 1) for number in numbers),
        linked=" ".join(f"UNION ALL SELECT * FROM link{number}" for number in numbers),  # noqa: S608 constants
        contents="".join(CONTENT.format(number=number) for number in numbers),
    )
    return HotStatement(appended)


def _parameters(event: Event, number: int) -> dict[str, Any]:
    row = encode(event)
    kept = _content(row)
    return {
        f"type{number}": row.type,
        f"schema{number}": row.schema_number,
        f"payload{number}": to_json_text(row.payload),
        f"commitment{number}": kept and kept.commitment(),
        f"salt{number}": kept and kept.salt,
        f"content{number}": kept and kept.content,
        f"tokens{number}": kept and kept.tokens,
    }


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
    LOCK_STREAM.run(conn, {"tenant": tenant, "stream": stream})


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


ONCE: dict[str, type[Once]] = {
    ONE_START_PER_TURN: TurnStarted,
    ONE_PIN_PER_ATTEMPT: TurnPinned,
    ONE_COMPLETION_PER_TURN: TurnCompleted,
}


def _lost_race(
    conn: Connection, error: IntegrityError, place: dict[str, Any], events: Sequence[Event]
) -> EverturnError:
    stream = place["stream"]
    match broken_constraint(error):
        case str(name) if name in (ONE_EVENT_PER_VERSION, ONE_CONTENT_PER_VERSION):
            version = place["expected"] + 1
            winner = describe_winner(conn, {"tenant": place["tenant"], "stream": stream, "version": version})
            return VersionConflict(
                f"In the meantime version {version} of stream {stream} went to another writer"
                f"{f', for its {winner}' if winner else ''}: read it again and decide anew."
            )
        case str(name) if name in ONCE:
            lost = next(event for event in events if isinstance(event, ONCE[name]))
            return _lost_fence(conn, place["tenant"], lost)
        case name:
            return Internal(f"Stream {stream} was offered an event that breaks {name}.")


def _lost_fence(conn: Connection, tenant: TenantId, lost: Once) -> FenceLost:
    whose = (
        f"Attempt {lost.attempt} of turn {lost.turn}" if isinstance(lost, TurnPinned) else f"Turn {lost.turn}"
    )
    holder = describe_holder(conn, tenant, lost)
    return FenceLost(
        f"{whose} has its '{lost.name}' already{f', of {holder}' if holder else ''}: that one stands, "
        "and nothing of this append is recorded. Read the turn again to see what became of it."
    )
