"""Turns whose process is gone or goes: handed to the workers, or ended with a reason; one transaction each."""

from datetime import datetime

from sqlalchemy import Connection

from service import turn_flow
from service.store import event_store, turn_queue
from service.store.turn_queue import Orphan
from service.store.turns import OpenTurn

MOST_CLAIMS = 5
"""A turn that ends its worker every time must not go round for ever."""
DEADLINE_EXCEEDED = "deadline_exceeded"
TOO_LATE = "The turn had not been answered when its deadline passed."
GONE = "The process that ran this turn stopped before it had an answer."
ORPHANED = f"{GONE} Nothing of it was accepted; send it again."


def settle(conn: Connection, turn: OpenTurn, *, finish: bool, now: datetime) -> bool:
    """Args:
    finish: whether a turn that a client asked for in the foreground is to be finished by a worker.

    Returns: whether it waits for a worker now.
    """
    # The stream's lock first and the turn's row then, as whoever completes it does.
    event_store.lock_stream(conn, turn.tenant, turn.conversation)
    orphan = turn_queue.hold(conn, tenant=turn.tenant, turn=turn.turn)
    if orphan is None:
        return False
    if orphan.late:
        _fail(conn, turn, DEADLINE_EXCEEDED, TOO_LATE, now)
        return False
    if not _goes_on(orphan, finish=finish):
        _fail(conn, turn, "orphaned", ORPHANED, now)
        return False
    _hand_over(conn, turn, GONE, now)
    return True


def hand_over(conn: Connection, turn: OpenTurn, *, owner: str, finish: bool, now: datetime) -> bool:
    """By the process that runs it, before it stops. Returns: whether it waits for a worker now."""
    event_store.lock_stream(conn, turn.tenant, turn.conversation)
    orphan = turn_queue.hold(conn, tenant=turn.tenant, turn=turn.turn, owner=owner)
    if orphan is None or not _goes_on(orphan, finish=finish):
        return False
    _hand_over(conn, turn, "The process that ran it was stopped.", now)
    return True


def retake(conn: Connection, turn: OpenTurn, *, owner: str, now: datetime) -> bool:
    """Another attempt may be planned then. False where the turn is not the owner's any more, or has ended."""
    event_store.lock_stream(conn, turn.tenant, turn.conversation)
    if turn_queue.hold(conn, tenant=turn.tenant, turn=turn.turn, owner=owner) is None:
        return False
    reason = (
        "It was begun, and nobody was told: the database did not answer, or who begun it had lost the turn."
    )
    _give_up(conn, turn, reason, now)
    return True


def fail_overdue(conn: Connection, turn: OpenTurn, now: datetime) -> None:
    """One that waits for a worker beyond its deadline; whoever takes it at this moment finds that out by itself."""
    _fail(conn, turn, DEADLINE_EXCEEDED, TOO_LATE, now)


def _goes_on(orphan: Orphan, *, finish: bool) -> bool:
    wanted = orphan.background or (finish and orphan.finish)
    return wanted and orphan.claims < MOST_CLAIMS


def _hand_over(conn: Connection, turn: OpenTurn, reason: str, now: datetime) -> None:
    _give_up(conn, turn, reason, now)
    turn_queue.queue(conn, tenant=turn.tenant, turn=turn.turn)


def _give_up(conn: Connection, turn: OpenTurn, reason: str, now: datetime) -> None:
    turn_flow.give_up_attempt(
        conn, tenant=turn.tenant, conversation=turn.conversation, turn=turn.turn, reason=reason, now=now
    )


def _fail(conn: Connection, turn: OpenTurn, code: str, message: str, now: datetime) -> None:
    turn_flow.fail_turn(
        conn,
        tenant=turn.tenant,
        conversation=turn.conversation,
        turn=turn.turn,
        code=code,
        message=message,
        now=now,
    )
