"""Rows of rebuilds as the simulated store keeps them."""

from dataclasses import replace

from service.domain.errors import FenceLost
from service.domain.plan import RebuildQueue
from service.store.rebuilds import Claim, RebuildState
from tests.simulation.tables import RebuildRow, Session

ACTIVE = (RebuildState.QUEUED, RebuildState.RUNNING)


def claim_of(row: RebuildRow) -> Claim:
    seen = row.seen
    return Claim(
        rebuild=seen.id,
        fence=seen.fence,
        tenant=seen.tenant,
        conversation=seen.conversation,
        turn=seen.turn,
        attempt=seen.attempt,
        revision=seen.revision,
        offer=seen.offer,
        tokens_total=seen.tokens_total,
        rollout=seen.rollout,
        tokens_done=seen.tokens_done,
        partial=seen.partials[-1] if seen.tokens_done else None,
        claims=row.claims,
    )


def a_turn_waits(conn: Session) -> bool:
    """For a rebuild that nobody has taken up."""
    return any(
        row.seen.state is RebuildState.QUEUED and row.seen.queue is RebuildQueue.INTERACTIVE
        for row in active(conn)
    )


def active(conn: Session) -> list[RebuildRow]:
    return [conn.tables.rebuilds[name] for name in conn.tables.unfinished]


def stale(conn: Session, row: RebuildRow) -> bool:
    running = row.seen.state is RebuildState.RUNNING
    return running and row.lease_end_s is not None and row.lease_end_s <= conn.now_s


def held(conn: Session, rebuild: str, fence: int) -> RebuildRow | None:
    row = conn.tables.rebuilds.get(rebuild)
    if row is None or row.seen.fence != fence or row.seen.state is not RebuildState.RUNNING:
        return None
    return row


def must_hold(conn: Session, rebuild: str, fence: int) -> RebuildRow:
    row = held(conn, rebuild, fence)
    if row is None:
        raise FenceLost(f"Rebuild {rebuild} is no longer held by fence {fence}: its result comes too late.")
    return row


def end(conn: Session, row: RebuildRow, state: RebuildState, reason: str | None) -> None:
    seen = replace(row.seen, state=state, finished_at=conn.now, reason=reason)
    put(conn, replace(row, seen=seen))


def put(conn: Session, row: RebuildRow) -> None:
    tables, seen = conn.tables, row.seen
    conn.set(tables.rebuilds, seen.id, row)
    unique: tuple[tuple[object, ...], ...] = (
        (seen.turn, seen.attempt),
        (seen.tenant, seen.conversation, seen.revision),
    )
    if seen.state in ACTIVE:
        for key in unique:
            conn.set(tables.active_rebuilds, key, seen.id)
        conn.set(tables.unfinished, seen.id, None)
    else:
        for key in unique:
            if tables.active_rebuilds.get(key) == seen.id:
                conn.remove(tables.active_rebuilds, key)
        conn.remove(tables.unfinished, seen.id)
