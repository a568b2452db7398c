"""As service.store.event_store: compare, append, and what no history may hold twice."""

from collections.abc import Sequence
from datetime import datetime

from service.domain.conversation import Conversation, evolve
from service.domain.errors import FenceLost, VersionConflict
from service.domain.events import (
    FLEET,
    AttemptFailed,
    ConversationEvent,
    ConversationId,
    Event,
    KvRefused,
    TenantId,
    TurnCompleted,
    TurnPinned,
    TurnStarted,
)
from service.domain.head import Head, advance_head
from tests.simulation.tables import EventRow, Session, Stream


def append(
    conn: Session,
    *,
    tenant: TenantId,
    stream: str,
    expected_version: int,
    events: Sequence[Event],
    now: datetime,
) -> int:
    key, tables = (tenant, stream), conn.tables
    known = tables.events.get(key, ())
    if len(known) != expected_version:
        raise VersionConflict(f"Stream {stream} is at version {len(known)}, not {expected_version}.")
    for event in events:
        _claim(conn, event, key)
        tables.positions += 1
        row = EventRow(position=tables.positions, event=event, occurred_at=now)
        conn.set(tables.events, key, (*tables.events.get(key, ()), row))
        conn.appended.append(event)
        if tenant != FLEET:
            _follow(conn, key, event)
    return expected_version + len(events)


def read(conn: Session, *, tenant: TenantId, stream: str, after_version: int = 0) -> list[Event]:
    return [row.event for row in conn.tables.events.get((tenant, stream), ())[after_version:]]


def load_conversation(
    conn: Session, tenant: TenantId, conversation: ConversationId, *, for_update: bool = False
) -> Conversation:
    return conn.tables.whole.get((tenant, conversation)) or Conversation(tenant=tenant, id=conversation)


def lock_stream(conn: Session, tenant: TenantId, stream: str) -> None:
    """A transaction has all to itself here."""


def _claim(conn: Session, event: Event, key: Stream) -> None:
    """The unique indexes."""
    tables = conn.tables
    taken: bool
    if isinstance(event, TurnStarted):
        taken = event.turn in tables.started
        conn.set(tables.started, event.turn, key)
    elif isinstance(event, TurnPinned):
        taken = (event.turn, event.attempt) in tables.pinned
        conn.set(tables.pinned, (event.turn, event.attempt), key)
    elif isinstance(event, TurnCompleted):
        taken = event.turn in tables.completed
        conn.set(tables.completed, event.turn, key)
    else:
        return
    if taken:
        raise FenceLost(f"Stream {key[1]} was offered what its turn has done before.")


def _follow(conn: Session, key: Stream, event: Event) -> None:
    """What queries would find: heads, engine loads, troubles, who spoke last."""
    assert isinstance(event, ConversationEvent)
    tables = conn.tables
    before = tables.heads.get(key) or Head(tenant=key[0], id=ConversationId(key[1]))
    conn.set(tables.heads, key, advance_head(before, event))
    whole = tables.whole.get(key) or Conversation(tenant=key[0], id=ConversationId(key[1]))
    conn.set(tables.whole, key, evolve(whole, event))
    if isinstance(event, TurnStarted):
        alias = tables.recent.setdefault(event.alias, {})
        conn.set(alias, key, tables.positions)
    elif isinstance(event, TurnPinned):
        conn.shift_load(before, event.turn, -1)
        conn.set(tables.loads, event.engine, tables.loads.get(event.engine, 0) + 1)
    elif isinstance(event, KvRefused):
        conn.add(tables.refusals, (tables.positions, event.engine_revision, event.refusal.reason.value))
    elif isinstance(event, AttemptFailed) and (pinned := before.turns[event.turn].pinned) is not None:
        conn.add(tables.failures, (tables.positions, pinned.revision))
