"""As service.store.rebuild_progress."""

from collections.abc import Collection
from dataclasses import replace

from service.domain.artifact import ArtifactId, BootId
from service.domain.evidence import Refusal
from service.domain.plan import RebuildQueue
from service.store.rebuilds import Claim, Rebuild, RebuildState
from tests.simulation.rebuild_rows import a_turn_waits, claim_of, end, held, must_hold, put
from tests.simulation.tables import Session


def hold(conn: Session, claim: Claim) -> Claim:
    return claim_of(must_hold(conn, claim.rebuild, claim.fence))


def look(conn: Session, wanted: Collection[str]) -> dict[str, Rebuild]:
    rows = conn.tables.rebuilds
    return {name: rows[name].seen for name in wanted if name in rows}


def move(
    conn: Session,
    claim: Claim,
    *,
    artifact: ArtifactId,
    engine_boot: BootId,
    tokens: int,
    refusal: Refusal | None,
) -> Claim:
    row = must_hold(conn, claim.rebuild, claim.fence)
    seen = replace(
        row.seen,
        partials=(*row.seen.partials, artifact),
        tokens_done=tokens,
        engine_boot=engine_boot,
        refusal=refusal or row.seen.refusal,
    )
    moved = replace(row, seen=seen, claims=0)
    put(conn, moved)
    return claim_of(moved)


def give_way(conn: Session, claim: Claim, *, anyway: bool = False) -> bool:
    row = held(conn, claim.rebuild, claim.fence)
    if row is None or row.seen.queue is not RebuildQueue.BACKGROUND or not (anyway or a_turn_waits(conn)):
        return False
    queued = replace(row.seen, state=RebuildState.QUEUED, owner=None)
    put(conn, replace(row, seen=queued, lease_end_s=None))
    return True


def let_go(conn: Session, claim: Claim, reason: str) -> None:
    row = held(conn, claim.rebuild, claim.fence)
    if row is not None:
        end(conn, row, RebuildState.SUPERSEDED, reason)


def remember(conn: Session, rebuild: str, artifact: ArtifactId) -> None:
    row = conn.tables.rebuilds[rebuild]
    put(conn, replace(row, seen=replace(row.seen, partials=(artifact, *row.seen.partials))))
