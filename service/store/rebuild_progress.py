"""A rebuild between its claim and its end: how far it has come, and what was published on the way."""

from collections.abc import Collection

from sqlalchemy import Connection, Text, any_, bindparam, func, select, text, true, update
from sqlalchemy.dialects.postgresql import ARRAY

from service.domain.artifact import ArtifactId, BootId
from service.domain.events import ConversationId, TenantId
from service.domain.evidence import Refusal
from service.domain.plan import RebuildQueue
from service.store.leases import CLOCK
from service.store.rebuild_fence import lost_fence
from service.store.rebuilds import (
    HOLD,
    Claim,
    Rebuild,
    RebuildState,
    a_turn_waits,
    claim_of,
    held_by,
    rebuild_of,
    refused,
)
from service.store.tables import rebuilds

# Built once: whoever waits for a rebuild looks again and again.
LOOK = select(rebuilds).where(rebuilds.c.rebuild_id == any_(bindparam("wanted", type_=ARRAY(Text))))


def hold(conn: Connection, claim: Claim) -> Claim:
    """As it is wanted now, and stays until this transaction ends: a turn may have taken it over from a warm-up.

    Raises:
        FenceLost: another worker claimed it, or nobody wants it any more.
    """
    row = conn.execute(HOLD, {"wanted": claim.rebuild, "held": claim.fence}).one_or_none()
    if row is None:
        raise lost_fence(conn, claim.rebuild, claim.fence)
    return claim_of(row)


def look(conn: Connection, wanted: Collection[str]) -> dict[str, Rebuild]:
    """By id; without those that there are not."""
    rows = conn.execute(LOOK, {"wanted": list(wanted)}).mappings()
    return {row["rebuild_id"]: rebuild_of(dict(row)) for row in rows}


def move(
    conn: Connection,
    claim: Claim,
    *,
    artifact: ArtifactId,
    engine_boot: BootId,
    tokens: int,
    refusal: Refusal | None,
) -> Claim:
    """Of one that is held: `artifact` has so many tokens of it."""
    values = {
        "partials": func.array_append(rebuilds.c.partials, artifact),
        "tokens_done": tokens,
        "engine_boot": engine_boot,
        "claims": 0,
    }
    query = (
        update(rebuilds)
        .where(held_by(claim.rebuild, claim.fence))
        .values(values | refused(refusal))
        .returning(rebuilds)
    )
    return claim_of(conn.execute(query).one())


def give_way(conn: Connection, claim: Claim, *, anyway: bool = False) -> bool:
    """Of one that nobody waits for: back into the queue, where a turn waits for another, or `anyway`."""
    query = (
        update(rebuilds)
        .where(
            held_by(claim.rebuild, claim.fence),
            rebuilds.c.queue == RebuildQueue.BACKGROUND,
            true() if anyway else a_turn_waits(),
        )
        .values(state=RebuildState.QUEUED, owner=None, lease_expires_at=None)
    )
    return conn.execute(query).rowcount == 1


def let_go(conn: Connection, claim: Claim, reason: str) -> None:
    """Of one that is held, and that nobody can have any use of."""
    values = {"state": RebuildState.SUPERSEDED, "finished_at": CLOCK, "reason": reason}
    conn.execute(update(rebuilds).where(held_by(claim.rebuild, claim.fence)).values(values))


def remember(conn: Connection, rebuild: str, artifact: ArtifactId) -> None:
    """Of one whose fence is lost: nobody goes on from this, but an erasure has to know of it."""
    query = update(rebuilds).where(rebuilds.c.rebuild_id == rebuild)
    conn.execute(query.values(partials=func.array_prepend(artifact, rebuilds.c.partials)))


def made_on_the_way(conn: Connection, tenant: TenantId, conversation: ConversationId) -> list[ArtifactId]:
    """For an erasure: what was published of the conversation's rebuilds, and is no artifact of it by itself."""
    query = select(rebuilds.c.partials).where(
        rebuilds.c.tenant_id == tenant,
        rebuilds.c.conversation_id == conversation,
        # A literal: the planner must see that the partial index applies.
        text("partials <> '{}'"),
    )
    return [ArtifactId(name) for names in conn.execute(query).scalars() for name in names]
