"""What a step of a rollout does to the fleet: where the alias points, and which engines take attempts."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service.domain.events import FLEET, AliasMoved, OnUpgrade
from service.domain.plan import EngineState
from service.domain.revision import RevisionDigest
from service.domain.rollout import Rollout
from service.domain.rollout_events import RolloutAborted, RolloutId, RolloutMove, RolloutStepped
from service.store import event_store, fleet, rollout_facts, rollouts
from service.store.rollouts import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedAlias:
    name: str
    revision: RevisionDigest
    previous: RevisionDigest | None
    on_upgrade: OnUpgrade | None


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Whatever the alias's policy is, it stays."""


def apply(conn: Connection, standing: Standing, event: RolloutMove, *, now: datetime) -> Standing:
    """Records the event of a rollout that is locked, and does what it says.

    Raises:
        Conflict: the rollout is where this cannot happen.
    """
    after = rollouts.move(conn, standing, event, now=now)
    if isinstance(event, RolloutStepped):
        if after.rollout.alias_moved and not standing.rollout.alias_moved:
            _lead(conn, after.rollout, after.rollout.target, by=event.by, now=now)
        for boot in event.engines:
            fleet.set_engine_state(conn, boot=boot, state=EngineState.DRAINING)
    return after


def abort(conn: Connection, rollout: RolloutId, *, by: str, reason: str, now: datetime) -> Standing:
    """Every conversation goes on where it was before, on engines that take attempts again.

    Raises:
        NotFound: no such rollout.
        Conflict: it has ended.
    """
    standing = rollouts.lock(conn, rollout) or rollouts.find(conn, rollout)
    before = standing.rollout
    after = apply(conn, standing, RolloutAborted(rollout=rollout, by=by, reason=reason), now=now)
    undrain(conn, before)
    if before.alias_moved:
        _lead(conn, before, before.source, by=by, now=now)
    supersede(conn, before, f"rollout {rollout} was aborted")
    return after


def supersede(conn: Connection, rollout: Rollout, reason: str) -> None:
    """Nobody needs KV of its target any more."""
    rollout_facts.supersede(conn, rollout.id, alias=rollout.alias, target=rollout.target, reason=reason)


def undrain(conn: Connection, rollout: Rollout) -> None:
    """Engines that the rollout set draining, and that are still there, take attempts again."""
    there = {e.boot for e in fleet.live_engines(conn) if e.state is EngineState.DRAINING}
    for boot in there.intersection(rollout.drained):
        fleet.set_engine_state(conn, boot=boot, state=EngineState.READY)


def point_alias(
    conn: Connection,
    alias: str,
    revision: RevisionDigest,
    *,
    on_upgrade: OnUpgrade | KeepPolicy | None,
    by: str,
    now: datetime,
) -> MovedAlias:
    """Where neither revision nor policy changes, nothing is recorded.

    Raises:
        VersionConflict: someone else moved it meanwhile.
    """
    stream = f"alias/{alias}"
    # Before what it is now: a move that comes between the two is a conflict, and not overlooked.
    version = len(event_store.read(conn, tenant=FLEET, stream=stream))
    known = fleet.find_alias(conn, alias)
    previous = known.revision if known else None
    before = known.on_upgrade if known else None
    policy = before if isinstance(on_upgrade, KeepPolicy) else on_upgrade
    if (previous, before) != (revision, policy):
        moved = AliasMoved(alias=alias, revision=revision, previous=previous, by=by, on_upgrade=policy)
        event_store.append(
            conn, tenant=FLEET, stream=stream, expected_version=version, events=[moved], now=now
        )
    fleet.set_alias(conn, alias, revision, policy)
    return MovedAlias(name=alias, revision=revision, previous=previous, on_upgrade=policy)


def _lead(conn: Connection, rollout: Rollout, revision: RevisionDigest, *, by: str, now: datetime) -> None:
    point_alias(conn, rollout.alias, revision, on_upgrade=KeepPolicy(), by=f"{by} ({rollout.id})", now=now)
