"""As service.store.rollouts: one active rollout of an alias, and where each stands."""

from dataclasses import replace
from datetime import datetime

from service.domain.errors import Conflict, NotFound
from service.domain.events import FLEET
from service.domain.revision import RevisionDigest
from service.domain.rollout import ACTIVE, Rollout, Route, advance, check
from service.domain.rollout_events import RolloutId, RolloutMove, RolloutResumed, RolloutStarted
from service.store.rollouts import Standing
from tests.simulation.store import event_store
from tests.simulation.tables import Session


def start(conn: Session, started: RolloutStarted, *, now: datetime) -> Standing:
    stream = f"rollout/{started.rollout}"
    event_store.append(conn, tenant=FLEET, stream=stream, expected_version=0, events=[started], now=now)
    if (active := find_active(conn, started.alias)) is not None:
        raise Conflict(f"Alias '{started.alias}' is in rollout {active}.")
    standing = Standing(
        rollout=Rollout.of(started),
        version=1,
        reason=started.reason,
        waiting=None,
        started_at=now,
        since=now,
        counted_from=conn.tables.positions,
        counted_since=now,
        ended_at=None,
    )
    conn.set(conn.tables.rollouts, started.rollout, standing)
    return standing


def clock(conn: Session) -> datetime:
    return conn.now


def lock(conn: Session, rollout: RolloutId, *, wait: bool = True) -> Standing | None:
    return conn.tables.rollouts.get(rollout)


def find(conn: Session, rollout: RolloutId) -> Standing:
    standing = conn.tables.rollouts.get(rollout)
    if standing is None:
        raise NotFound("rollout", rollout)
    return standing


def find_active(conn: Session, alias: str) -> RolloutId | None:
    for standing in conn.tables.rollouts.values():
        if standing.rollout.alias == alias and standing.rollout.state in ACTIVE:
            return standing.rollout.id
    return None


def list_active(conn: Session) -> list[RolloutId]:
    return [one.rollout.id for one in conn.tables.rollouts.values() if one.rollout.state in ACTIVE]


def move(conn: Session, standing: Standing, event: RolloutMove, *, now: datetime) -> Standing:
    check(standing.rollout, event)
    rollout = advance(standing.rollout, event)
    event_store.append(
        conn,
        tenant=FLEET,
        stream=f"rollout/{rollout.id}",
        expected_version=standing.version,
        events=[event],
        now=now,
    )
    paused = rollout.state is not rollout.held
    after = replace(
        standing,
        rollout=rollout,
        version=standing.version + 1,
        reason=event.reason,
        waiting=None,
        since=standing.since if paused else now,
        ended_at=None if rollout.state in ACTIVE else now,
    )
    if isinstance(event, RolloutResumed):
        after = replace(after, counted_from=conn.tables.positions, counted_since=now)
    conn.set(conn.tables.rollouts, rollout.id, after)
    return after


def note_waiting(conn: Session, standing: Standing, reason: str) -> None:
    if reason != standing.waiting:
        conn.set(conn.tables.rollouts, standing.rollout.id, replace(standing, waiting=reason))


def route_of(conn: Session, alias: str) -> tuple[RevisionDigest, Route | None] | None:
    pointed = conn.tables.aliases.get(alias)
    if pointed is None:
        return None
    active = find_active(conn, alias)
    if active is None:
        return pointed.revision, None
    rollout = conn.tables.rollouts[active].rollout
    return pointed.revision, Route(
        rollout=rollout.id,
        step=rollout.step,
        percent=rollout.percent,
        source=rollout.source,
        target=rollout.target,
    )
