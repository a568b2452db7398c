"""Walks every chain of the log with hashes of its own, in bounded memory, and names the first row of each that is wrong.

A tail that was cut off, or a chain that was made anew from its beginning, shows only against a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from service.domain.events import ConversationErased
from service.store.chain import Content, Entry, link

FETCHED_ROWS = 64
"""At once: their content, of at most some megabytes each, is all that is held."""

LOG = text("""
    SELECT e.position, e.tenant_id, e.stream, e.stream_version, e.type, e.schema_number,
           timestamptz_send(e.occurred_at) AS occurred, e.payload::text AS payload, e.commitment, e.chain,
           kept.salt, kept.content, kept.tokens
    FROM events AS e LEFT JOIN event_contents AS kept USING (tenant_id, stream, stream_version)
    ORDER BY e.tenant_id, e.stream, e.stream_version
""")

STRAY_CONTENTS = text("""
    SELECT tenant_id, stream, stream_version FROM event_contents AS kept
    WHERE NOT EXISTS (
        SELECT FROM events AS e
        WHERE (e.tenant_id, e.stream, e.stream_version) = (kept.tenant_id, kept.stream, kept.stream_version)
    )
    ORDER BY tenant_id, stream, stream_version
""")


# Each chain stands alone; what a fork was made of is held fast by the fork's own.
FORKS = text("""
    SELECT forked.tenant_id, forked.stream, forked.stream_version, forked.position, forked.payload ->> 'parent' AS parent,
           parent.chain IS NULL AS gone
    FROM events AS forked
    LEFT JOIN events AS parent ON parent.tenant_id = forked.tenant_id AND parent.stream = forked.payload ->> 'parent'
        AND parent.stream_version = CAST(forked.payload ->> 'parent_version' AS bigint)
    WHERE forked.type = 'conversation.forked'
        AND parent.chain IS DISTINCT FROM decode(forked.payload ->> 'parent_chain', 'hex')
    ORDER BY forked.tenant_id, forked.stream
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The first wrong row of a stream; `position` None where the row is not there."""

    tenant: str
    stream: str
    version: int
    position: int | None
    reason: str

    def __str__(self) -> str:
        where = "no row" if self.position is None else f"position {self.position}"
        return f"{self.tenant} {self.stream} version {self.version} ({where}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    entry: Entry
    position: int
    chain: bytes
    content: Content | None


@dataclass(slots=True)
class Walked:
    """What a walk has passed, for its report."""

    streams: int = 0
    events: int = 0
    erased: int = 0


@dataclass(slots=True)
class _Stream:
    tenant: str = ""
    name: str = ""
    version: int = 0
    position: int = 0
    chain: bytes = b""
    broken: bool = False
    kept: list[Row] = field(default_factory=list)
    """The first row whose content is there, without its content: none may be, once the stream is erased."""
    gone: list[Row] = field(default_factory=list)
    """The first row whose content is not there: erased, if a tombstone follows."""
    erased: bool = False


def verify(conn: Connection, walked: Walked) -> Iterator[Break]:
    """At most one break for each stream, in their order, then the forks whose parents' histories are not what was forked.

    The transaction should be one that sees a single snapshot.
    """
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    stream = _Stream()
    for row in _rows(conn):
        if (row.entry.tenant, row.entry.stream) != (stream.tenant, stream.name):
            yield from _ended(stream)
            stream = _Stream(tenant=row.entry.tenant, name=row.entry.stream)
            walked.streams += 1
        walked.events += 1
        if stream.broken:
            continue
        if (reason := _wrong(stream, row)) is not None:
            stream.broken = True
            yield _break(row, reason)
            continue
        _step(stream, row, walked)
    yield from _ended(stream)
    for fork in conn.execute(FORKS, execution_options={"yield_per": FETCHED_ROWS}):
        what = "is not there any more" if fork.gone else "is another one now"
        yield Break(
            tenant=fork.tenant_id,
            stream=fork.stream,
            version=fork.stream_version,
            position=fork.position,
            reason=f"it was forked from a history of {fork.parent} that {what}",
        )
    for tenant, name, version in conn.execute(STRAY_CONTENTS, execution_options={"yield_per": FETCHED_ROWS}):
        yield Break(
            tenant=tenant, stream=name, version=version, position=None, reason="it has content, but is gone"
        )


def _rows(conn: Connection) -> Iterator[Row]:
    for row in conn.execute(LOG, execution_options={"yield_per": FETCHED_ROWS}):
        yield Row(
            entry=Entry(
                tenant=row.tenant_id,
                stream=row.stream,
                version=row.stream_version,
                type=row.type,
                schema_number=row.schema_number,
                occurred_us=int.from_bytes(row.occurred, "big", signed=True),
                payload=row.payload,
                commitment=row.commitment,
            ),
            position=row.position,
            chain=row.chain,
            content=None
            if row.salt is None
            else Content(salt=row.salt, content=row.content, tokens=row.tokens),
        )


def _wrong(stream: _Stream, row: Row) -> str | None:
    if row.entry.version != stream.version + 1:
        return f"it follows version {stream.version}: {row.entry.version - stream.version - 1} before it are gone"
    if link(stream.chain, row.entry.digest()) != row.chain:
        return "it is not what its chain was made of"
    if row.position <= stream.position:
        return f"it stands before its predecessor, which is at {stream.position}"
    if stream.erased:
        return "it follows the tombstone of its conversation"
    if row.content is not None and row.content.commitment() != row.entry.commitment:
        return "its content is not what it committed to"
    return None


def _step(stream: _Stream, row: Row, walked: Walked) -> None:
    stream.version, stream.chain, stream.position = row.entry.version, row.chain, row.position
    if row.entry.type == ConversationErased.name:
        stream.erased = True
        walked.erased += 1
    if row.entry.commitment is None:
        return
    seen = stream.gone if row.content is None else stream.kept
    if not seen:
        seen.append(Row(entry=row.entry, position=row.position, chain=row.chain, content=None))


def _ended(stream: _Stream) -> Iterator[Break]:
    if stream.broken:
        return
    if stream.erased and stream.kept:
        yield _break(stream.kept[0], "its conversation was erased, but its content is there")
    elif not stream.erased and stream.gone:
        yield _break(stream.gone[0], "its content is gone, and no tombstone says that it was erased")


def _break(row: Row, reason: str) -> Break:
    return Break(
        tenant=row.entry.tenant,
        stream=row.entry.stream,
        version=row.entry.version,
        position=row.position,
        reason=reason,
    )
