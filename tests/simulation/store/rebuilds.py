"""As service.store.rebuilds: the queue of record with its leases and fences."""

from dataclasses import replace

from service.domain.artifact import ArtifactId, BootId
from service.domain.errors import VersionConflict
from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.evidence import Refusal
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId
from service.store.rebuilds import Claim, Rebuild, RebuildState
from tests.simulation.rebuild_rows import (
    ACTIVE,
    a_turn_waits,
    active,
    claim_of,
    end,
    held,
    must_hold,
    put,
    stale,
)
from tests.simulation.tables import RebuildRow, Session


def enqueue(
    conn: Session,
    *,
    rebuild: str,
    tenant: TenantId,
    conversation: ConversationId,
    turn: TurnId,
    attempt: int,
    revision: RevisionDigest,
    offer: ArtifactId | None,
    tokens_total: int,
    queue: RebuildQueue,
    rollout: RolloutId | None = None,
) -> None:
    if (turn, attempt) in conn.tables.active_rebuilds:
        raise VersionConflict(f"Attempt {attempt} of turn {turn} is being rebuilt already.")
    if (tenant, conversation, revision) in conn.tables.active_rebuilds:
        raise VersionConflict(f"Conversation {conversation} is being rebuilt under {revision} already.")
    seen = Rebuild(
        id=rebuild,
        tenant=tenant,
        conversation=conversation,
        turn=turn,
        attempt=attempt,
        revision=revision,
        offer=offer,
        queue=queue,
        state=RebuildState.QUEUED,
        fence=0,
        owner=None,
        tokens_total=tokens_total,
        tokens_done=0,
        engine_boot=None,
        artifact=None,
        reason=None,
        refusal=None,
        created_at=conn.now,
        started_at=None,
        finished_at=None,
        rollout=rollout,
    )
    put(conn, RebuildRow(seen=seen))


def join(
    conn: Session,
    *,
    rebuild: str,
    tenant: TenantId,
    conversation: ConversationId,
    turn: TurnId,
    attempt: int,
    revision: RevisionDigest,
    offer: ArtifactId | None,
    tokens_total: int,
) -> str:
    known = conn.tables.active_rebuilds.get((tenant, conversation, revision))
    if known is None:
        enqueue(
            conn,
            rebuild=rebuild,
            tenant=tenant,
            conversation=conversation,
            turn=turn,
            attempt=attempt,
            revision=revision,
            offer=offer,
            tokens_total=tokens_total,
            queue=RebuildQueue.INTERACTIVE,
        )
        return rebuild
    row = conn.tables.rebuilds[known]
    conn.remove(conn.tables.active_rebuilds, (row.seen.turn, row.seen.attempt))
    seen = replace(
        row.seen,
        turn=turn,
        attempt=attempt,
        tokens_total=tokens_total,
        queue=RebuildQueue.INTERACTIVE,
        rollout=None,
        offer=offer if row.seen.fence == 0 else row.seen.offer,
    )
    put(conn, replace(row, seen=seen))
    return known


def claim(conn: Session, *, rebuild: str, owner: str, lease_s: float) -> Claim | None:
    row = conn.tables.rebuilds.get(rebuild)
    if row is None or not (row.seen.state is RebuildState.QUEUED or stale(conn, row)):
        return None
    if row.seen.queue is RebuildQueue.BACKGROUND and a_turn_waits(conn):
        return None
    seen = replace(
        row.seen,
        state=RebuildState.RUNNING,
        fence=row.seen.fence + 1,
        owner=owner,
        started_at=row.seen.started_at or conn.now,
    )
    taken = RebuildRow(seen=seen, lease_end_s=conn.now_s + lease_s, claims=row.claims + 1)
    put(conn, taken)
    return claim_of(taken)


def renew(conn: Session, *, rebuild: str, fence: int, lease_s: float) -> bool:
    row = held(conn, rebuild, fence)
    if row is None:
        return False
    put(conn, replace(row, lease_end_s=conn.now_s + lease_s))
    return True


def finish(
    conn: Session,
    *,
    rebuild: str,
    fence: int,
    artifact: ArtifactId,
    engine_boot: BootId,
    tokens: int,
    refusal: Refusal | None,
) -> None:
    row = must_hold(conn, rebuild, fence)
    seen = replace(
        row.seen,
        artifact=artifact,
        engine_boot=engine_boot,
        tokens_done=tokens,
        refusal=refusal or row.seen.refusal,
    )
    end(conn, replace(row, seen=seen), RebuildState.DONE, None)


def fail(conn: Session, *, rebuild: str, fence: int, reason: str) -> None:
    end(conn, must_hold(conn, rebuild, fence), RebuildState.FAILED, reason)


def find(conn: Session, rebuild: str) -> Rebuild | None:
    row = conn.tables.rebuilds.get(rebuild)
    return None if row is None else row.seen


def supersede(conn: Session, *, turn: TurnId) -> None:
    for row in active(conn):
        if row.seen.turn == turn:
            end(conn, row, RebuildState.SUPERSEDED, row.seen.reason)


def stalled(conn: Session, *, queued_for_s: float, limit: int) -> list[tuple[str, RebuildQueue]]:
    found = [
        row.seen
        for row in active(conn)
        if stale(conn, row)
        or (
            row.seen.state is RebuildState.QUEUED
            and (conn.now - row.seen.created_at).total_seconds() >= queued_for_s
        )
    ]
    found.sort(key=lambda seen: (seen.created_at, seen.id))
    return [(seen.id, seen.queue) for seen in found[:limit]]


def end_by_hand(conn: Session, rebuild: str, state: RebuildState, reason: str) -> bool:
    row = conn.tables.rebuilds.get(rebuild)
    if row is None or row.seen.state not in ACTIVE:
        return False
    end(conn, row, state, reason)
    return True
