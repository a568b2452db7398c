"""As service.store.turns: one open turn of a conversation, one turn of a key, and whose it is for how long."""

from dataclasses import replace
from math import inf

from service.domain.errors import ConversationLocked, VersionConflict
from service.domain.events import ConversationId, TenantId, TurnId
from service.store.turns import NOBODY, IdempotentTurn, OpenTurn, Run
from tests.simulation.tables import Session, TurnRow

AS_ANY = Run()


def open_turn(
    conn: Session,
    *,
    tenant: TenantId,
    turn: TurnId,
    conversation: ConversationId,
    idempotency_key: str | None,
    request_hash: str,
    owner: str,
    lease_s: float,
    run: Run = AS_ANY,
) -> None:
    tables = conn.tables
    if (tenant, conversation) in tables.open_turns:
        raise ConversationLocked(f"Conversation {conversation} is answering another turn.")
    if idempotency_key is not None:
        if (tenant, idempotency_key) in tables.keys:
            raise VersionConflict(f"A request with turn {turn}'s idempotency key was accepted meanwhile.")
        conn.set(tables.keys, (tenant, idempotency_key), turn)
    row = TurnRow(
        turn=turn,
        tenant=tenant,
        conversation=conversation,
        key=idempotency_key,
        request_hash=request_hash,
        owner=NOBODY if run.background else owner,
        lease_end_s=inf if run.background else conn.now_s + lease_s,
        queued_s=conn.now_s if run.background else None,
        deadline_s=None if run.deadline_s is None else conn.now_s + run.deadline_s,
        opened=tables.positions,
        run=run,
    )
    conn.set(tables.turns, turn, row)
    conn.set(tables.open_turns, (tenant, conversation), turn)


def find_turn(conn: Session, tenant: TenantId, turn: TurnId) -> ConversationId | None:
    row = conn.tables.turns.get(turn)
    return row.conversation if row is not None and row.tenant == tenant else None


def find_idempotent(conn: Session, tenant: TenantId, key: str) -> IdempotentTurn | None:
    turn = conn.tables.keys.get((tenant, key))
    if turn is None:
        return None
    row = conn.tables.turns[turn]
    return IdempotentTurn(turn=turn, conversation=row.conversation, request_hash=row.request_hash)


def close_turn(conn: Session, *, tenant: TenantId, turn: TurnId) -> None:
    row = conn.tables.turns.get(turn)
    if row is None or row.tenant != tenant:
        return
    closed = replace(row, closed=True, owner=None, lease_end_s=None, queued_s=None)
    conn.set(conn.tables.turns, turn, closed)
    conn.remove(conn.tables.chunks, turn)
    if not row.closed:
        conn.shift_load(conn.tables.heads[tenant, row.conversation], turn, -1)
    if conn.tables.open_turns.get((tenant, row.conversation)) == turn:
        conn.remove(conn.tables.open_turns, (tenant, row.conversation))


def orphaned(conn: Session, limit: int) -> list[OpenTurn]:
    found = [row for row in conn.open_rows() if row.lease_end_s is not None and row.lease_end_s <= conn.now_s]
    found.sort(key=lambda row: (row.lease_end_s or 0.0, row.turn))
    return [
        OpenTurn(tenant=row.tenant, conversation=row.conversation, turn=row.turn) for row in found[:limit]
    ]
