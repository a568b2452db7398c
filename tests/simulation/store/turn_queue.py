"""As service.store.turn_queue: turns that wait for a worker, and those whose processes went silent."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from service.domain.events import TenantId, TurnId
from service.store.turn_queue import Claimed, Orphan
from service.store.turns import NOBODY, OpenTurn
from tests.simulation.tables import Session


def claim(conn: Session, *, turn: TurnId, owner: str, lease_s: float) -> Claimed | None:
    row = conn.tables.turns.get(turn)
    if row is None or row.closed or row.queued_s is None:
        return None
    taken = replace(row, owner=owner, lease_end_s=conn.now_s + lease_s, queued_s=None, claims=row.claims + 1)
    conn.set(conn.tables.turns, turn, taken)
    return Claimed(
        tenant=row.tenant,
        conversation=row.conversation,
        turn=turn,
        claim=taken.claims,
        background=row.run.background,
        streamed=row.run.streamed,
        left_s=None if row.deadline_s is None else row.deadline_s - conn.now_s,
    )


def queue(conn: Session, *, tenant: TenantId, turn: TurnId) -> None:
    row = conn.tables.turns.get(turn)
    if row is not None and row.tenant == tenant and not row.closed:
        queued = replace(row, owner=NOBODY, lease_end_s=inf, queued_s=conn.now_s)
        conn.set(conn.tables.turns, turn, queued)


def hold(conn: Session, *, tenant: TenantId, turn: TurnId, owner: str | None = None) -> Orphan | None:
    row = conn.tables.turns.get(turn)
    if row is None or row.tenant != tenant or row.closed:
        return None
    gone = row.lease_end_s is not None and row.lease_end_s <= conn.now_s
    if not (gone if owner is None else row.owner == owner):
        return None
    return Orphan(
        background=row.run.background,
        streamed=row.run.streamed,
        finish=row.run.finish,
        claims=row.claims,
        late=row.deadline_s is not None and row.deadline_s <= conn.now_s,
    )


def renew(conn: Session, mine: Iterable[TurnId], *, owner: str, lease_s: float) -> set[TurnId]:
    kept = set()
    for turn in sorted(mine):
        row = conn.tables.turns.get(turn)
        if row is not None and row.owner == owner:
            conn.set(conn.tables.turns, turn, replace(row, lease_end_s=conn.now_s + lease_s))
            kept.add(turn)
    return kept


def waiting(conn: Session, *, for_s: float, limit: int) -> list[TurnId]:
    queued = [(row.queued_s, row.turn) for row in conn.open_rows() if row.queued_s is not None]
    return [turn for since_s, turn in sorted(queued) if since_s <= conn.now_s - for_s][:limit]


def overdue(conn: Session, limit: int) -> list[OpenTurn]:
    late = [
        OpenTurn(tenant=row.tenant, conversation=row.conversation, turn=row.turn)
        for row in conn.open_rows()
        if row.queued_s is not None and row.deadline_s is not None and row.deadline_s <= conn.now_s
    ]
    return late[:limit]
