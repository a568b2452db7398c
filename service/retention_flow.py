"""Retention: a tenant's conversations are erased some days after their last turn; each function is one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service.domain.events import ConversationId
from service.erasure_flow import erase_conversation
from service.store import ancestry, event_store, retention, turns
from service.store.retention import Overdue, Retention

BY = "retention"
"""Who erased, in the tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one conversation that is older than its tenant's policy allows."""

    rule: Retention
    overdue: Overdue
    kept: str | None
    """Why it could not be erased now; None where it was, or, in a dry run, would be."""
    forks: tuple[ConversationId, ...] = ()
    """Erased with it."""


def next_overdue(
    conn: Connection, rule: Retention, *, now: datetime, after: ConversationId | None, limit: int
) -> Sequence[Overdue]:
    return retention.overdue(conn, rule.tenant, before=rule.before(now), after=after, limit=limit)


def judge(conn: Connection, rule: Retention, found: Overdue, now: datetime) -> Outcome:
    """What `erase_overdue` would do now; nothing is changed."""
    return Outcome(rule=rule, overdue=found, kept=_kept(conn, rule, found.conversation, now, lock=False))


def erase_overdue(conn: Connection, rule: Retention, found: Overdue, now: datetime) -> Outcome:
    """Judged again under its lock: it may have been gone on with, forked or erased since it was found."""
    kept = _kept(conn, rule, found.conversation, now, lock=True)
    if kept is not None:
        return Outcome(rule=rule, overdue=found, kept=kept)
    erased = erase_conversation(
        conn,
        tenant=rule.tenant,
        conversation=found.conversation,
        by=BY,
        reason=f"retention: no turn for {rule.after_days} days; set by {rule.set_by} on {rule.set_at:%Y-%m-%d}",
        now=now,
    )
    return Outcome(rule=rule, overdue=found, kept=None, forks=erased.forks)


def _kept(
    conn: Connection, rule: Retention, conversation: ConversationId, now: datetime, *, lock: bool
) -> str | None:
    """Why it stays: itself, or a fork that begins with what was said in it."""
    if lock:
        event_store.lock_stream(conn, rule.tenant, conversation)
    last = retention.last_at(conn, rule.tenant, conversation)
    if last is None:
        return f"{conversation} is erased already"
    if last >= rule.before(now):
        return f"{conversation} was gone on with at {last:%Y-%m-%d %H:%M}"
    if turns.is_open(conn, rule.tenant, conversation):
        return f"a turn of {conversation} is open"
    for fork in ancestry.children(conn, rule.tenant, conversation):
        if retention.last_at(conn, rule.tenant, fork) is None:
            continue
        if (kept := _kept(conn, rule, fork, now, lock=lock)) is not None:
            return kept if kept.startswith("its fork") else f"its fork stays: {kept}"
    return None
