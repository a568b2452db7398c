"""As service.store.turn_chunks: what running turns have said so far."""

from collections.abc import Sequence

from service.domain.cuts import Chunk
from service.domain.events import TenantId, TurnId
from service.store.turn_chunks import Progress, Said
from tests.simulation.tables import Session


def keep(conn: Session, said: Sequence[Said], *, owner: str) -> set[TurnId]:
    kept = set()
    for one in said:
        row = conn.tables.turns.get(one.turn)
        if row is None or row.closed or row.owner != owner:
            continue
        kept.add(one.turn)
        known = conn.tables.chunks.get(one.turn, ())
        if all(chunk.number != one.chunk.number for chunk in known):
            conn.set(conn.tables.chunks, one.turn, (*known, one.chunk))
    return kept


def read(conn: Session, *, tenant: TenantId, turn: TurnId) -> list[Chunk]:
    return sorted(conn.tables.chunks.get(turn, ()), key=lambda chunk: chunk.number)


def progress(conn: Session, *, tenant: TenantId, turn: TurnId, since: int) -> Progress | None:
    row = conn.tables.turns.get(turn)
    if row is None or row.tenant != tenant:
        return None
    chunks = read(conn, tenant=tenant, turn=turn)
    return Progress(
        closed=row.closed,
        waits=row.queued_s is not None,
        background=row.run.background,
        streamed=row.run.streamed,
        chunks=tuple(chunk for chunk in chunks if chunk.number >= since),
    )


def forget_ended(conn: Session) -> int:
    ended = [turn for turn in conn.tables.chunks if conn.tables.turns[turn].closed]
    for turn in ended:
        conn.remove(conn.tables.chunks, turn)
    return len(ended)
