"""Which turns are open, who answers them, and which request each one came from; the facts are events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from service.domain.errors import ConversationLocked, EverturnError, Internal, VersionConflict
from service.domain.events import ConversationId, TenantId, TurnId
from service.store.constraints import broken_constraint
from service.store.hot_statement import HotStatement
from service.store.leases import CLOCK, expired, lease_end, seconds
from service.store.tables import ONE_OPEN_TURN, ONE_TURN_PER_KEY, turns
from service.store.turn_chunks import turn_chunks

NOBODY = "queue"
"""Owner of a turn that waits for a worker."""
NEVER: ColumnElement[Any] = literal_column("timestamptz '9999-01-01 00:00:00+00'")
"""When the lease of such a turn ends: nobody is to be found dead."""
IN_QUEUE = {"owner": NOBODY, "lease_expires_at": NEVER, "queued_at": CLOCK}

# Built once: what every turn comes by.
_DEADLINE = {"deadline_at": lease_end(seconds("deadline_s"))}
_OPENED = (
    *("turn_id", "tenant_id", "conversation_id", "idempotency_key", "request_hash"),
    *("background", "streamed", "finish"),
)
OPEN = HotStatement(
    insert(turns).values(_DEADLINE | {"lease_expires_at": lease_end(seconds("lease_s"))}),
    columns=(*_OPENED, "owner"),
)
OPEN_IN_QUEUE = HotStatement(insert(turns).values(_DEADLINE | IN_QUEUE), columns=_OPENED)
CONVERSATION_OF = HotStatement(
    select(turns.c.conversation_id).where(
        turns.c.turn_id == bindparam("turn"), turns.c.tenant_id == bindparam("tenant")
    )
)
CLOSE = HotStatement(
    update(turns)
    .where(turns.c.turn_id == bindparam("turn"), turns.c.tenant_id == bindparam("tenant"))
    .values(closed=True, owner=None, lease_expires_at=None, queued_at=None)
    .add_cte(
        delete(turn_chunks)
        .where(turn_chunks.c.turn_id == bindparam("turn"), turn_chunks.c.tenant_id == bindparam("tenant"))
        .cte("said")
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotentTurn:
    turn: TurnId
    conversation: ConversationId
    request_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a turn is run."""

    background: bool = False
    streamed: bool = False
    finish: bool = False
    """By a worker, if the process that runs it is gone."""
    deadline_s: float | None = None
    """From now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId


def open_turn(
    conn: Connection,
    *,
    tenant: TenantId,
    turn: TurnId,
    conversation: ConversationId,
    idempotency_key: str | None,
    request_hash: str,
    owner: str,
    lease_s: float,
    run: Run = Run(),
) -> None:
    """One in the background is nobody's, until a worker takes it.

    Raises:
        ConversationLocked: another turn of the conversation is open.
        VersionConflict: a request with the same key was accepted meanwhile: look it up.
    """
    row = {
        "turn_id": turn,
        "tenant_id": tenant,
        "conversation_id": conversation,
        "idempotency_key": idempotency_key,
        "request_hash": request_hash,
        "background": run.background,
        "streamed": run.streamed,
        "finish": run.finish,
        "deadline_s": run.deadline_s,
    }
    try:
        if run.background:
            OPEN_IN_QUEUE.run(conn, row)
        else:
            OPEN.run(conn, row | {"owner": owner, "lease_s": lease_s})
    except IntegrityError as error:
        raise _refusal(error, turn, conversation) from error


def find_turn(conn: Connection, tenant: TenantId, turn: TurnId) -> ConversationId | None:
    found = CONVERSATION_OF.one_or_none(conn, {"turn": turn, "tenant": tenant})
    return None if found is None else ConversationId(found.conversation_id)


def find_idempotent(conn: Connection, tenant: TenantId, key: str) -> IdempotentTurn | None:
    query = select(turns.c.turn_id, turns.c.conversation_id, turns.c.request_hash).where(
        turns.c.tenant_id == tenant, turns.c.idempotency_key == key
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return IdempotentTurn(
        turn=TurnId(row.turn_id),
        conversation=ConversationId(row.conversation_id),
        request_hash=row.request_hash,
    )


def request_hash_of(conn: Connection, tenant: TenantId, turn: TurnId) -> str | None:
    query = select(turns.c.request_hash).where(turns.c.turn_id == turn, turns.c.tenant_id == tenant)
    return conn.execute(query).scalar_one_or_none()


def newest_of_request(
    conn: Connection, tenant: TenantId, conversations: Sequence[ConversationId], request_hash: str
) -> OpenTurn | None:
    """Of the turns of these conversations, open or not, the last that this very request made."""
    query = (
        select(turns.c.tenant_id, turns.c.conversation_id, turns.c.turn_id)
        .where(
            turns.c.tenant_id == tenant,
            turns.c.conversation_id.in_(conversations),
            turns.c.request_hash == request_hash,
        )
        .order_by(turns.c.opened_at.desc())
        .limit(1)
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else _open_turn(row)


def renew_lease(conn: Connection, *, turn: TurnId, owner: str, lease_s: float) -> bool:
    """False once the turn is closed or another's."""
    query = (
        update(turns)
        .where(turns.c.turn_id == turn, turns.c.owner == owner)
        .values(lease_expires_at=lease_end(lease_s))
    )
    return conn.execute(query).rowcount == 1


def close_turn(conn: Connection, *, tenant: TenantId, turn: TurnId) -> None:
    """What it has said so far is forgotten: the record has what there is to keep."""
    CLOSE.run(conn, {"turn": turn, "tenant": tenant})


def forget_requests(conn: Connection, *, tenant: TenantId, conversation: ConversationId) -> None:
    """Hashes of what was said, which could be guessed, and keys that a client chose."""
    conn.execute(
        update(turns)
        .where(turns.c.tenant_id == tenant, turns.c.conversation_id == conversation)
        .values(request_hash="", idempotency_key=None)
    )


def orphaned(conn: Connection, limit: int) -> list[OpenTurn]:
    """Open turns whose owner went silent, longest first; not those that another transaction is busy with."""
    query = (
        select(turns.c.tenant_id, turns.c.conversation_id, turns.c.turn_id)
        .where(~turns.c.closed, expired(turns.c.lease_expires_at))
        .order_by(turns.c.lease_expires_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [_open_turn(row) for row in conn.execute(query)]


def is_open(conn: Connection, tenant: TenantId, conversation: ConversationId) -> bool:
    query = select(turns.c.turn_id).where(
        turns.c.tenant_id == tenant, turns.c.conversation_id == conversation, ~turns.c.closed
    )
    return conn.execute(query).one_or_none() is not None


def _open_turn(row: Row[Any, Any, Any]) -> OpenTurn:
    return OpenTurn(
        tenant=TenantId(row.tenant_id),
        conversation=ConversationId(row.conversation_id),
        turn=TurnId(row.turn_id),
    )


def _refusal(error: IntegrityError, turn: TurnId, conversation: ConversationId) -> EverturnError:
    match broken_constraint(error):
        case str(name) if name == ONE_OPEN_TURN:
            return ConversationLocked(
                f"Conversation {conversation} is answering another turn; send the next one when it has ended."
            )
        case str(name) if name == ONE_TURN_PER_KEY:
            return VersionConflict(f"A request with turn {turn}'s idempotency key was accepted meanwhile.")
        case name:
            return Internal(f"Turn {turn} cannot be opened: it breaks {name}.")
