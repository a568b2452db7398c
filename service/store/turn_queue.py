"""The queue of record for turns: those that wait for a worker, whose they become, and whose processes have gone silent."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select, update

from service.domain.events import ConversationId, TenantId, TurnId
from service.store.leases import CLOCK, expired, lease_end
from service.store.tables import turns
from service.store.turns import IN_QUEUE, OpenTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId
    claim: int
    """Counts those who have run it, but for the process that accepted it."""
    background: bool
    streamed: bool
    left_s: float | None
    """Until its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A turn whose owner went silent, as it stands."""

    background: bool
    streamed: bool
    finish: bool
    claims: int
    late: bool
    """Past its deadline."""


def claim(conn: Connection, *, turn: TurnId, owner: str, lease_s: float) -> Claimed | None:
    """None at once if it is another's, has ended, or never was: then there is nothing to do."""
    free = (
        select(turns.c.turn_id)
        .where(turns.c.turn_id == turn, turns.c.queued_at.is_not(None), ~turns.c.closed)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    query = (
        update(turns)
        .where(turns.c.turn_id == free)
        .values(owner=owner, lease_expires_at=lease_end(lease_s), queued_at=None, claims=turns.c.claims + 1)
        .returning(turns, func.extract("epoch", turns.c.deadline_at - CLOCK).label("left_s"))
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Claimed(
        tenant=TenantId(row.tenant_id),
        conversation=ConversationId(row.conversation_id),
        turn=TurnId(row.turn_id),
        claim=row.claims,
        background=row.background,
        streamed=row.streamed,
        left_s=None if row.left_s is None else float(row.left_s),
    )


def queue(conn: Connection, *, tenant: TenantId, turn: TurnId) -> None:
    """Whoever ran it has lost it."""
    recovered = case(
        (turns.c.background, turns.c.recovered_at), else_=func.coalesce(turns.c.recovered_at, CLOCK)
    )
    conn.execute(
        update(turns)
        .where(turns.c.turn_id == turn, turns.c.tenant_id == tenant, ~turns.c.closed)
        .values(IN_QUEUE | {"recovered_at": recovered})
    )


def hold(conn: Connection, *, tenant: TenantId, turn: TurnId, owner: str | None = None) -> Orphan | None:
    """Locked until the transaction ends. None unless it is open and its lease has run out, or it is `owner`'s."""
    left = expired(turns.c.lease_expires_at) if owner is None else turns.c.owner == owner
    late = func.coalesce(turns.c.deadline_at <= CLOCK, False).label("late")
    query = (
        select(turns, late)
        .where(turns.c.turn_id == turn, turns.c.tenant_id == tenant, ~turns.c.closed, left)
        .with_for_update()
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Orphan(
        background=row.background,
        streamed=row.streamed,
        finish=row.finish,
        claims=row.claims,
        late=row.late,
    )


def renew(conn: Connection, mine: Iterable[TurnId], *, owner: str, lease_s: float) -> set[TurnId]:
    """Those of them that are still the owner's."""
    query = (
        update(turns)
        .where(turns.c.turn_id.in_(list(mine)), turns.c.owner == owner)
        .values(lease_expires_at=lease_end(lease_s))
        .returning(turns.c.turn_id)
    )
    return {TurnId(turn) for turn in conn.execute(query).scalars()}


def waiting(conn: Connection, *, for_s: float, limit: int) -> list[TurnId]:
    """Those to ring for again, longest first."""
    query = (
        select(turns.c.turn_id)
        .where(turns.c.queued_at <= lease_end(-for_s), ~turns.c.closed)
        .order_by(turns.c.queued_at)
        .limit(limit)
    )
    return [TurnId(turn) for turn in conn.execute(query).scalars()]


def overdue(conn: Connection, limit: int) -> list[OpenTurn]:
    """Those that wait for a worker beyond their deadline."""
    query = (
        select(turns.c.tenant_id, turns.c.conversation_id, turns.c.turn_id)
        .where(turns.c.queued_at.is_not(None), ~turns.c.closed, turns.c.deadline_at <= CLOCK)
        .limit(limit)
    )
    return [
        OpenTurn(
            tenant=TenantId(row.tenant_id),
            conversation=ConversationId(row.conversation_id),
            turn=TurnId(row.turn_id),
        )
        for row in conn.execute(query)
    ]


def depths(conn: Connection) -> dict[tuple[str, str], tuple[int, float]]:
    """By kind (`background`, `recovered`) and state (`queued`, `running`): how many, and seconds since the first was accepted."""
    kind = case((turns.c.background, "background"), else_="recovered").label("kind")
    state = case((turns.c.queued_at.is_not(None), "queued"), else_="running").label("state")
    age_s = func.extract("epoch", CLOCK - func.min(turns.c.opened_at)).label("age_s")
    query = (
        select(kind, state, func.count().label("depth"), age_s)
        .where(~turns.c.closed, turns.c.background | turns.c.recovered_at.is_not(None))
        .group_by(kind, state)
    )
    return {(row.kind, row.state): (row.depth, float(row.age_s)) for row in conn.execute(query)}


def recovered(conn: Connection) -> int:
    """Turns that were taken from a process that had gone silent or was stopped, ever."""
    query = select(func.count()).select_from(turns).where(turns.c.recovered_at.is_not(None))
    return conn.execute(query).scalar_one()
