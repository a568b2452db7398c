"""Where each rollout stands: rows that follow its events, one active for each alias, and the lock by which it is moved."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from service.domain.errors import Conflict, Internal, NotFound
from service.domain.events import FLEET
from service.domain.revision import RevisionDigest
from service.domain.rollout import ACTIVE, Rollout, Route, advance, check, fold
from service.domain.rollout_events import RolloutId, RolloutMove, RolloutResumed, RolloutStarted
from service.store import event_store
from service.store.codec import to_document
from service.store.constraints import broken_constraint
from service.store.hot_statement import HotStatement
from service.store.leases import CLOCK
from service.store.rollout_tables import ACTIVE as ACTIVE_STATE
from service.store.rollout_tables import ACTIVE_STATES, ONE_ACTIVE_ROLLOUT, rollouts
from service.store.tables import aliases, events
from service.store.timeline import read_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    rollout: Rollout
    version: int
    reason: str
    """Of its last event."""
    waiting: str | None
    """What it waits for, as it last found."""
    started_at: datetime
    since: datetime
    """When the last step was made, or the rollout resumed."""
    counted_from: int
    """The position in the log after which what goes wrong counts against it."""
    counted_since: datetime
    ended_at: datetime | None


def clock(conn: Connection) -> datetime:
    """The database's: what holds for a time holds for as long by whichever process moves it, though their clocks differ."""
    now: datetime = conn.execute(select(CLOCK)).scalar_one()
    return now


def start(conn: Connection, started: RolloutStarted, *, now: datetime) -> Standing:
    """Raises: Conflict: the alias is in a rollout already; names it."""
    stream = _stream(started.rollout)
    event_store.append(conn, tenant=FLEET, stream=stream, expected_version=0, events=[started], now=now)
    rollout = Rollout.of(started)
    row = {
        "rollout_id": rollout.id,
        "alias": rollout.alias,
        "source": rollout.source,
        "target": rollout.target,
        "state": rollout.state,
        "step": rollout.step,
        "percent": rollout.percent,
        "version": 1,
        "strategy": to_document(rollout.strategy),
        "reason": started.reason,
        "started_at": now,
        "since": now,
    } | _counting(conn)
    try:
        with conn.begin_nested():
            conn.execute(insert(rollouts).values(row))
    except IntegrityError as error:
        if broken_constraint(error) != ONE_ACTIVE_ROLLOUT:
            raise
        raise Conflict(_in_the_way(conn, rollout.alias)) from error
    return find(conn, rollout.id)


def lock(conn: Connection, rollout: RolloutId, *, wait: bool = True) -> Standing | None:
    """Until the transaction ends nobody else moves it. None where it is not there, or another moves it and `wait` is False."""
    query = select(rollouts).where(rollouts.c.rollout_id == rollout)
    row = conn.execute(query.with_for_update(skip_locked=not wait)).one_or_none()
    return None if row is None else _standing(conn, row)


def find(conn: Connection, rollout: RolloutId) -> Standing:
    """Raises: NotFound."""
    row = conn.execute(select(rollouts).where(rollouts.c.rollout_id == rollout)).one_or_none()
    if row is None:
        raise NotFound("rollout", rollout)
    return _standing(conn, row)


def find_active(conn: Connection, alias: str) -> RolloutId | None:
    query = select(rollouts.c.rollout_id).where(
        rollouts.c.alias == alias, rollouts.c.state.in_(ACTIVE_STATES)
    )
    found = conn.execute(query).scalar_one_or_none()
    return None if found is None else RolloutId(found)


def list_active(conn: Connection) -> list[RolloutId]:
    query = select(rollouts.c.rollout_id).where(rollouts.c.state.in_(ACTIVE_STATES))
    return [RolloutId(name) for name in conn.execute(query.order_by(rollouts.c.started_at)).scalars()]


def list_newest(conn: Connection, *, alias: str | None, limit: int) -> list[Standing]:
    query = select(rollouts).order_by(rollouts.c.started_at.desc(), rollouts.c.rollout_id).limit(limit)
    if alias is not None:
        query = query.where(rollouts.c.alias == alias)
    return [_standing(conn, row) for row in conn.execute(query).all()]


def history(conn: Connection, rollout: RolloutId, *, after: int = 0) -> list[dict[str, Any]]:
    """Its events as JSON, each with its name as `type` and when it happened, from version `after` + 1 on."""
    recorded = read_recorded(conn, tenant=FLEET, stream=_stream(rollout), after_version=after)
    return [
        {"type": one.event.name, "at": one.occurred_at.isoformat()} | to_document(one.event)
        for one in recorded
    ]


def percents(conn: Connection) -> dict[tuple[str, str], int]:
    """Of active rollouts, by alias and state: the percentage that they are at."""
    query = select(rollouts.c.alias, rollouts.c.state, rollouts.c.percent).where(
        rollouts.c.state.in_(ACTIVE_STATES)
    )
    return {(row.alias, row.state): row.percent for row in conn.execute(query)}


def move(conn: Connection, standing: Standing, event: RolloutMove, *, now: datetime) -> Standing:
    """Recorded, for a rollout that is locked.

    Raises:
        Conflict: the rollout is where this cannot happen.
    """
    check(standing.rollout, event)
    rollout = advance(standing.rollout, event)
    event_store.append(
        conn,
        tenant=FLEET,
        stream=_stream(rollout.id),
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
        after = replace(after, **_counting(conn))
    conn.execute(
        update(rollouts)
        .where(rollouts.c.rollout_id == rollout.id)
        .values(
            state=rollout.state,
            step=rollout.step,
            percent=rollout.percent,
            version=after.version,
            reason=after.reason,
            waiting=None,
            since=after.since,
            counted_from=after.counted_from,
            counted_since=after.counted_since,
            ended_at=after.ended_at,
        )
    )
    return after


def note_waiting(conn: Connection, standing: Standing, reason: str) -> None:
    if reason != standing.waiting:
        conn.execute(
            update(rollouts).where(rollouts.c.rollout_id == standing.rollout.id).values(waiting=reason)
        )


# Built once: what every turn comes by.
ROUTE = HotStatement(
    select(
        aliases.c.revision,
        *(rollouts.c[name] for name in ("rollout_id", "step", "percent", "source", "target")),
    )
    .join_from(
        aliases,
        rollouts,
        and_(rollouts.c.alias == aliases.c.alias, text(f"rollouts.state {ACTIVE_STATE}")),
        isouter=True,
    )
    .where(aliases.c.alias == bindparam("alias"))
)


def route_of(conn: Connection, alias: str) -> tuple[RevisionDigest, Route | None] | None:
    """What the alias points at and the rollout it is in, in one look; None for an alias that is not there."""
    row = ROUTE.one_or_none(conn, {"alias": alias})
    if row is None:
        return None
    revision = RevisionDigest(row.revision)
    if row.rollout_id is None:
        return revision, None
    return revision, Route(
        rollout=RolloutId(row.rollout_id),
        step=row.step,
        percent=row.percent,
        source=RevisionDigest(row.source),
        target=RevisionDigest(row.target),
    )


def _in_the_way(conn: Connection, alias: str) -> str:
    return f"Alias '{alias}' is in rollout {find_active(conn, alias)}: abort it or roll it back first, or wait for its end."


def _counting(conn: Connection) -> dict[str, Any]:
    """From here on: by the log, and for rebuilds by the clock that says when they ended."""
    last = func.coalesce(func.max(events.c.position), 0)
    return dict(
        conn.execute(select(last.label("counted_from"), CLOCK.label("counted_since"))).mappings().one()
    )


def _standing(conn: Connection, row: Row[Any]) -> Standing:
    history = event_store.read(conn, tenant=FLEET, stream=_stream(RolloutId(row.rollout_id)))
    # Of a row that nobody locked: what was recorded after it was read is not yet where it stands.
    rollout = fold(history[: row.version])
    if (rollout.state, rollout.step, rollout.percent) != (row.state, row.step, row.percent):
        raise Internal(f"The row of rollout {rollout.id} is not where its events lead.")
    return Standing(
        rollout=rollout,
        version=row.version,
        reason=row.reason,
        waiting=row.waiting,
        started_at=row.started_at,
        since=row.since,
        counted_from=row.counted_from,
        counted_since=row.counted_since,
        ended_at=row.ended_at,
    )


def _stream(rollout: RolloutId) -> str:
    return f"rollout/{rollout}"
