"""The one reader of the log's global order: every committed event once, in an order that never changes behind it.

Positions alone will not do: they are drawn before commit, so a later one may be seen first, and a rollback leaves a gap.
The order is (txid, position), up to the oldest transaction that still runs: nothing can appear before that any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from re import fullmatch
from struct import unpack
from typing import Any, Self

from sqlalchemy import Connection, text

from service.domain.errors import InvalidInput
from service.store.codec import from_document

PAGE = text("""
    SELECT e.position, e.txid::text AS txid, e.tenant_id, e.stream, e.stream_version, e.type, e.schema_number,
           e.occurred_at, e.payload, e.commitment, e.chain, kept.content, kept.tokens
    FROM events AS e LEFT JOIN event_contents AS kept
        ON :contents AND (kept.tenant_id, kept.stream, kept.stream_version) = (e.tenant_id, e.stream, e.stream_version)
    WHERE (e.txid, e.position) > (CAST(CAST(:txid AS text) AS xid8), CAST(:position AS bigint))
        AND e.txid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY e.txid, e.position
    LIMIT :limit
""")

LAG = text("""
    SELECT count(*) AS waiting, coalesce(extract(epoch FROM clock_timestamp() - min(occurred_at)), 0) AS seconds
    FROM events WHERE txid >= pg_snapshot_xmin(pg_current_snapshot())
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last event that a reader has seen."""

    txid: int = 0
    position: int = 0

    def __str__(self) -> str:
        return f"{self.txid}-{self.position}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: InvalidInput."""
        if (found := fullmatch(r"(\d{1,19})-(\d{1,18})", text)) is None:
            raise InvalidInput(
                f"'after' is no cursor: '{text}'. Give the 'cursor' of an event, or leave it out to start at the first.",
                "after",
            )
        return cls(txid=int(found[1]), position=int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    cursor: Cursor
    tenant: str
    stream: str
    version: int
    type: str
    schema_number: int
    occurred_at: datetime
    payload: Mapping[str, Any]
    commitment: bytes | None
    chain: bytes
    content: bytes | None
    tokens: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Events that are committed but held back, since a transaction older than they still runs."""

    waiting: int
    seconds: float


def read_page(
    conn: Connection, *, after: Cursor, limit: int, contents: bool = False
) -> tuple[Published, ...]:
    """`contents` adds the words and token ids, which otherwise stay None."""
    parameters = {"txid": str(after.txid), "position": after.position, "limit": limit, "contents": contents}
    return tuple(
        Published(
            cursor=Cursor(txid=int(row.txid), position=row.position),
            tenant=row.tenant_id,
            stream=row.stream,
            version=row.stream_version,
            type=row.type,
            schema_number=row.schema_number,
            occurred_at=row.occurred_at,
            payload=from_document(row.payload),
            commitment=row.commitment,
            chain=row.chain,
            content=row.content,
            tokens=row.tokens,
        )
        for row in conn.execute(PAGE, parameters)
    )


def read_lag(conn: Connection) -> Lag:
    row = conn.execute(LAG).one()
    return Lag(waiting=row.waiting, seconds=float(row.seconds))


def to_json(event: Published) -> dict[str, Any]:
    """JSON that ASCII can carry: text that is not valid Unicode keeps its lone surrogates as escapes."""
    document = {
        "cursor": str(event.cursor),
        "position": event.cursor.position,
        "tenant": event.tenant,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema": event.schema_number,
        "occurred_at": event.occurred_at.isoformat(),
        "payload": event.payload,
        "commitment": event.commitment.hex() if event.commitment else None,
        "chain": event.chain.hex(),
    }
    if event.content is not None:
        document["content"] = event.content.decode("utf-8", "surrogatepass")
    if event.tokens is not None:
        document["tokens"] = unpack(f"<{len(event.tokens) // 4}I", event.tokens)
    return document
