"""The queue of record for rebuilds: a message only rings, the row says whose the work is, and the fence who lost it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import IntegrityError

from service.domain.artifact import ArtifactId, BootId
from service.domain.errors import VersionConflict
from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.evidence import Refusal
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId
from service.store.codec import from_document, to_document
from service.store.constraints import broken_constraint
from service.store.leases import CLOCK, expired, lease_end, seconds
from service.store.rebuild_fence import lost_fence
from service.store.tables import ONE_ACTIVE_REBUILD, ONE_SHARED_REBUILD, rebuilds


class RebuildState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    rebuild: str
    fence: int
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId
    attempt: int
    revision: RevisionDigest
    offer: ArtifactId | None
    tokens_total: int
    rollout: RolloutId | None = None
    """That it warms for: no turn waits, and the one named is the conversation's last."""
    tokens_done: int = 0
    partial: ArtifactId | None = None
    """What is published of it so far."""
    claims: int = 1
    """In a row that brought it no further, with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    id: str
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId
    attempt: int
    revision: RevisionDigest
    offer: ArtifactId | None
    queue: RebuildQueue
    state: RebuildState
    fence: int
    owner: str | None
    tokens_total: int
    tokens_done: int
    engine_boot: BootId | None
    artifact: ArtifactId | None
    reason: str | None
    refusal: Refusal | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    rollout: RolloutId | None = None
    partials: tuple[ArtifactId, ...] = ()
    """Published on the way, the newest last."""


def enqueue(
    conn: Connection,
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
    """Raises: VersionConflict: the attempt has an active rebuild already, or its conversation has one under that revision."""
    row = {
        "rebuild_id": rebuild,
        "tenant_id": tenant,
        "conversation_id": conversation,
        "turn_id": turn,
        "attempt": attempt,
        "revision": revision,
        "offer": offer,
        "tokens_total": tokens_total,
        "queue": queue,
        "rollout_id": rollout,
    }
    try:
        conn.execute(insert(rebuilds).values(row))
    except IntegrityError as error:
        match broken_constraint(error):
            case str(name) if name == ONE_ACTIVE_REBUILD:
                raise VersionConflict(
                    f"Attempt {attempt} of turn {turn} is being rebuilt already."
                ) from error
            case str(name) if name == ONE_SHARED_REBUILD:
                raise VersionConflict(
                    f"Conversation {conversation} is being rebuilt under {revision} already."
                ) from error
            case _:
                raise


def join(
    conn: Connection,
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
    """For a turn that waits: what is queued or running for its conversation and revision becomes its own, with fence and progress.

    Returns the id of that; `rebuild` is a new one's, where there is none.
    """
    wanted = {
        "turn_id": turn,
        "attempt": attempt,
        "tokens_total": tokens_total,
        "queue": RebuildQueue.INTERACTIVE,
        "rollout_id": None,
    }
    row = {
        "rebuild_id": rebuild,
        "tenant_id": tenant,
        "conversation_id": conversation,
        "revision": revision,
        "offer": offer,
    }
    query = (
        insert(rebuilds)
        .values(row | wanted)
        .on_conflict_do_update(
            index_elements=["tenant_id", "conversation_id", "revision"],
            index_where=text("state in ('queued', 'running')"),
            # Who has claimed it already has made its own offer.
            set_=wanted | {"offer": case((rebuilds.c.fence == 0, offer), else_=rebuilds.c.offer)},
        )
        .returning(rebuilds.c.rebuild_id)
    )
    return str(conn.execute(query).scalar_one())


def claim(conn: Connection, *, rebuild: str, owner: str, lease_s: float) -> Claim | None:
    """None at once if it is another's, has ended, or never was: then there is nothing to do.

    Nor is there where nobody waits for it, and a turn waits for another.
    """
    given = {"wanted": rebuild, "by": owner, "lease_s": lease_s}
    row = conn.execute(CLAIM, given).one_or_none()
    return None if row is None else claim_of(row)


def renew(conn: Connection, *, rebuild: str, fence: int, lease_s: float) -> bool:
    """False once the fence is lost: then stop."""
    return conn.execute(RENEW, {"wanted": rebuild, "held": fence, "lease_s": lease_s}).rowcount == 1


def finish(
    conn: Connection,
    *,
    rebuild: str,
    fence: int,
    artifact: ArtifactId,
    engine_boot: BootId,
    tokens: int,
    refusal: Refusal | None,
) -> None:
    """`refusal` is that of the artifact which was offered to the rebuilding engine.

    Raises:
        FenceLost: another worker claimed it, or its turn went on without.
    """
    made = {"made": artifact, "maker": engine_boot, "tokens": tokens}
    told = {"refused": None if refusal is None else to_document(refusal)}
    _end(conn, FINISH, rebuild, fence, made | told)


def fail(conn: Connection, *, rebuild: str, fence: int, reason: str) -> None:
    """Raises: FenceLost as `finish` does."""
    _end(conn, FAIL, rebuild, fence, {"why": reason})


def find(conn: Connection, rebuild: str) -> Rebuild | None:
    row = conn.execute(select(rebuilds).where(rebuilds.c.rebuild_id == rebuild)).mappings().one_or_none()
    return None if row is None else rebuild_of(dict(row))


def end_by_hand(conn: Connection, rebuild: str, state: RebuildState, reason: str) -> bool:
    """Whoever works on it has lost the fence. False where it has ended already."""
    values = {"state": state, "finished_at": CLOCK, "reason": reason}
    active = and_(rebuilds.c.rebuild_id == rebuild, _active())
    return conn.execute(update(rebuilds).where(active).values(values)).rowcount == 1


def requeue(conn: Connection, rebuild: str) -> bool:
    """Goes on from what was published of it. False where it did not end without a result.

    Raises:
        VersionConflict: another one is queued or running for its conversation and revision.
    """
    ended = and_(
        rebuilds.c.rebuild_id == rebuild,
        rebuilds.c.state.in_([RebuildState.FAILED, RebuildState.SUPERSEDED]),
    )
    values = {"state": RebuildState.QUEUED, "finished_at": None, "reason": None, "owner": None, "claims": 0}
    try:
        return conn.execute(update(rebuilds).where(ended).values(values)).rowcount == 1
    except IntegrityError as error:
        if broken_constraint(error) == ONE_SHARED_REBUILD:
            raise VersionConflict(f"Rebuild {rebuild} is not needed: another one makes the same.") from error
        raise


def supersede(conn: Connection, *, turn: TurnId) -> None:
    """The turn goes on without: whoever still works on its rebuilds has lost the fence."""
    conn.execute(SUPERSEDE, {"turn": turn})


def stalled(conn: Connection, *, queued_for_s: float, limit: int) -> list[tuple[str, RebuildQueue]]:
    """Those to ring for again: queued for longer than that, or running under a lease that ran out."""
    forgotten = or_(
        and_(rebuilds.c.state == RebuildState.QUEUED, rebuilds.c.created_at <= lease_end(-queued_for_s)),
        and_(rebuilds.c.state == RebuildState.RUNNING, expired(rebuilds.c.lease_expires_at)),
    )
    query = (
        select(rebuilds.c.rebuild_id, rebuilds.c.queue)
        .where(_active(), forgotten)
        .order_by(rebuilds.c.created_at)
        .limit(limit)
    )
    return [(row.rebuild_id, RebuildQueue(row.queue)) for row in conn.execute(query)]


def a_turn_waits() -> ColumnElement[bool]:
    """For a rebuild that nobody has taken up."""
    other = rebuilds.alias()
    return exists().where(other.c.state == RebuildState.QUEUED, other.c.queue == RebuildQueue.INTERACTIVE)


def claim_of(row: Row[Any]) -> Claim:
    return Claim(
        rebuild=row.rebuild_id,
        fence=row.fence,
        tenant=TenantId(row.tenant_id),
        conversation=ConversationId(row.conversation_id),
        turn=TurnId(row.turn_id),
        attempt=row.attempt,
        revision=RevisionDigest(row.revision),
        offer=_artifact(row.offer),
        tokens_total=row.tokens_total,
        rollout=_rollout(row.rollout_id),
        tokens_done=row.tokens_done,
        partial=_artifact(row.partials[-1] if row.tokens_done else None),
        claims=row.claims,
    )


def refused(refusal: Refusal | None) -> dict[str, Any]:
    """What an earlier chunk was refused stays known."""
    return {} if refusal is None else {"refusal": to_document(refusal)}


def _active() -> ColumnElement[bool]:
    # Literals: the planner must see that the partial index applies.
    return rebuilds.c.state.in_([RebuildState.QUEUED, RebuildState.RUNNING])


def held_by(rebuild: str | BindParameter[str], fence: int | BindParameter[int]) -> ColumnElement[bool]:
    return and_(
        rebuilds.c.rebuild_id == rebuild,
        rebuilds.c.fence == fence,
        rebuilds.c.state == RebuildState.RUNNING,
    )


# Built once: what every turn and every rebuild comes by.
SUPERSEDE = (
    update(rebuilds)
    .where(rebuilds.c.turn_id == bindparam("turn"), text("state IN ('queued', 'running')"))
    .values(state=RebuildState.SUPERSEDED, finished_at=CLOCK)
)
_FREE = or_(
    rebuilds.c.state == RebuildState.QUEUED,
    and_(rebuilds.c.state == RebuildState.RUNNING, expired(rebuilds.c.lease_expires_at)),
)
_FIRST = or_(rebuilds.c.queue == RebuildQueue.INTERACTIVE, ~a_turn_waits())
_MINE = select(rebuilds.c.rebuild_id).where(rebuilds.c.rebuild_id == bindparam("wanted"), _FREE, _FIRST)
CLAIM = (
    update(rebuilds)
    .where(rebuilds.c.rebuild_id == _MINE.with_for_update(skip_locked=True).scalar_subquery())
    .values(
        state=RebuildState.RUNNING,
        fence=rebuilds.c.fence + 1,
        owner=bindparam("by"),
        lease_expires_at=lease_end(seconds("lease_s")),
        started_at=func.coalesce(rebuilds.c.started_at, CLOCK),
        claims=rebuilds.c.claims + 1,
    )
    .returning(rebuilds)
)
_HELD = held_by(bindparam("wanted"), bindparam("held"))
HOLD = select(rebuilds).where(_HELD).with_for_update()
RENEW = update(rebuilds).where(_HELD).values(lease_expires_at=lease_end(seconds("lease_s")))
FINISH = (
    update(rebuilds)
    .where(_HELD)
    .values(
        state=RebuildState.DONE,
        finished_at=CLOCK,
        artifact_id=bindparam("made"),
        engine_boot=bindparam("maker"),
        tokens_done=bindparam("tokens"),
        refusal=func.coalesce(bindparam("refused", type_=JSONB(none_as_null=True)), rebuilds.c.refusal),
    )
)
FAIL = (
    update(rebuilds)
    .where(_HELD)
    .values(state=RebuildState.FAILED, finished_at=CLOCK, reason=bindparam("why"))
)


def _end(conn: Connection, ended: Update, rebuild: str, fence: int, told: dict[str, Any]) -> None:
    if conn.execute(ended, {"wanted": rebuild, "held": fence} | told).rowcount != 1:
        raise lost_fence(conn, rebuild, fence)


def rebuild_of(row: dict[str, Any]) -> Rebuild:
    return Rebuild(
        id=row["rebuild_id"],
        tenant=TenantId(row["tenant_id"]),
        conversation=ConversationId(row["conversation_id"]),
        turn=TurnId(row["turn_id"]),
        attempt=row["attempt"],
        revision=RevisionDigest(row["revision"]),
        offer=_artifact(row["offer"]),
        queue=RebuildQueue(row["queue"]),
        state=RebuildState(row["state"]),
        fence=row["fence"],
        owner=row["owner"],
        tokens_total=row["tokens_total"],
        tokens_done=row["tokens_done"],
        engine_boot=None if row["engine_boot"] is None else BootId(row["engine_boot"]),
        artifact=_artifact(row["artifact_id"]),
        reason=row["reason"],
        refusal=None if row["refusal"] is None else Refusal.from_json(from_document(row["refusal"])),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        rollout=_rollout(row["rollout_id"]),
        partials=tuple(map(ArtifactId, row["partials"])),
    )


def _artifact(value: str | None) -> ArtifactId | None:
    return None if value is None else ArtifactId(value)


def _rollout(value: str | None) -> RolloutId | None:
    return None if value is None else RolloutId(value)
