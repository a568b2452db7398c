"""What running turns have said so far, for whoever else reads them or goes on with them; gone when the turn has ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    delete,
    select,
)

from service.domain.cuts import Chunk
from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.revision import RevisionDigest
from service.store.tables import METADATA, REVISION, turns

turn_chunks = Table(
    "turn_chunks",
    METADATA,
    Column("turn_id", Text, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("claim", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("revision", Text, nullable=False),
    Column("pieces", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("turn_id", "tenant_id", "number", name="pk_turn_chunks"),
    CheckConstraint("number >= 0 and claim >= 0 and attempt > 0", name="ck_turn_chunks_numbers"),
    CheckConstraint(f"revision {REVISION}", name="ck_turn_chunks_revision"),
)

# Rows of turns that are held at this moment are being ended or renewed: what belongs to them comes with the next look.
KEEP = """
    WITH mine AS (
        SELECT turn_id, tenant_id FROM turns
        WHERE turn_id = ANY (%(turns)s) AND owner = %(owner)s AND NOT closed
        FOR SHARE SKIP LOCKED
    ), kept AS (
        INSERT INTO turn_chunks (turn_id, tenant_id, number, claim, attempt, revision, pieces, content)
        SELECT turn_id, tenant_id, new.number, new.claim, new.attempt, new.revision, new.pieces, new.content
        FROM unnest(
            CAST(%(turns)s AS text[]), CAST(%(tenants)s AS text[]), CAST(%(numbers)s AS bigint[]),
            CAST(%(claims)s AS bigint[]), CAST(%(attempts)s AS bigint[]), CAST(%(revisions)s AS text[]),
            CAST(%(pieces)s AS text[]), CAST(%(contents)s AS bytea[])
        ) AS new (turn_id, tenant_id, number, claim, attempt, revision, pieces, content)
        JOIN mine USING (turn_id, tenant_id)
        -- The reply to an earlier COMMIT was lost: only the owner writes, so it is the same.
        ON CONFLICT (turn_id, tenant_id, number) DO NOTHING
    )
    SELECT turn_id FROM mine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A chunk, and whose it is."""

    tenant: TenantId
    turn: TurnId
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Of a turn that another process may be running."""

    closed: bool
    waits: bool
    """For a worker."""
    background: bool
    streamed: bool
    chunks: tuple[Chunk, ...] = ()


def keep(conn: Connection, said: Sequence[Said], *, owner: str) -> set[TurnId]:
    """The turns whose chunks are stored now: not one that is another's by now, and not yet one that is busy."""
    columns = {
        "owner": owner,
        "turns": [one.turn for one in said],
        "tenants": [one.tenant for one in said],
        "numbers": [one.chunk.number for one in said],
        "claims": [one.chunk.claim for one in said],
        "attempts": [one.chunk.attempt for one in said],
        "revisions": [one.chunk.revision for one in said],
        "pieces": [" ".join(map(str, one.chunk.pieces)) for one in said],
        "contents": [one.chunk.text.encode("utf-8", "surrogatepass") for one in said],
    }
    return {TurnId(turn) for turn in conn.exec_driver_sql(KEEP, columns).scalars()}


def read(conn: Connection, *, tenant: TenantId, turn: TurnId) -> list[Chunk]:
    """All of them, in order."""
    query = (
        select(turn_chunks)
        .where(turn_chunks.c.turn_id == turn, turn_chunks.c.tenant_id == tenant)
        .order_by(turn_chunks.c.number)
    )
    return [_chunk(row) for row in conn.execute(query)]


def progress(conn: Connection, *, tenant: TenantId, turn: TurnId, since: int) -> Progress | None:
    """With the chunks from number `since` on; None where there is no such turn."""
    later = (
        (turn_chunks.c.turn_id == turns.c.turn_id)
        & (turn_chunks.c.tenant_id == turns.c.tenant_id)
        & (turn_chunks.c.number >= since)
    )
    waits = turns.c.queued_at.is_not(None).label("waits")
    query = (
        select(turns.c.closed, waits, turns.c.background, turns.c.streamed, turn_chunks)
        .select_from(turns.outerjoin(turn_chunks, later))
        .where(turns.c.turn_id == turn, turns.c.tenant_id == tenant)
        .order_by(turn_chunks.c.number)
    )
    rows = conn.execute(query).all()
    if not rows:
        return None
    return Progress(
        closed=rows[0].closed,
        waits=rows[0].waits,
        background=rows[0].background,
        streamed=rows[0].streamed,
        chunks=tuple(_chunk(row) for row in rows if row.number is not None),
    )


def forget_conversation(conn: Connection, *, tenant: TenantId, conversation: ConversationId) -> None:
    theirs = select(turns.c.turn_id).where(
        turns.c.tenant_id == tenant, turns.c.conversation_id == conversation
    )
    conn.execute(
        delete(turn_chunks).where(turn_chunks.c.tenant_id == tenant, turn_chunks.c.turn_id.in_(theirs))
    )


def forget_ended(conn: Connection) -> int:
    """What was left behind by a version that ends turns without forgetting it."""
    ended = select(turns.c.turn_id).where(
        turns.c.closed, turns.c.turn_id == turn_chunks.c.turn_id, turns.c.tenant_id == turn_chunks.c.tenant_id
    )
    return conn.execute(delete(turn_chunks).where(ended.exists())).rowcount


def _chunk(row: Row[tuple[object, ...]]) -> Chunk:
    pieces: Iterable[str] = row.pieces.split()
    return Chunk(
        number=row.number,
        claim=row.claim,
        attempt=row.attempt,
        revision=RevisionDigest(row.revision),
        pieces=tuple(map(int, pieces)),
        text=bytes(row.content).decode("utf-8", "surrogatepass"),
    )
