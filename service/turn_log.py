"""What a turn did becomes part of the record: events appended in order, KV that was published noted beside them."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from service.domain import decide
from service.domain.events import ConversationId, KvRefused, TenantId, TurnId
from service.domain.evidence import Evidence, Published
from service.domain.head import Head, advance_head
from service.domain.turn import TurnEvent
from service.store import artifacts, event_store, kv_deletions, timeline

EventT = TypeVar("EventT", bound=TurnEvent)


def continue_turn(conn: Connection, state: Head, events: Sequence[TurnEvent], now: datetime) -> Head:
    """Each event must be legal after those before it."""
    before = state.version
    for event in events:
        decide.continue_turn(state, event)
        state = advance_head(state, event)
    event_store.append(
        conn, tenant=state.tenant, stream=state.id, expected_version=before, events=events, now=now
    )
    return state


def given(event: EventT | None) -> tuple[EventT, ...]:
    return () if event is None else (event,)


def record_published(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    published: Published,
    now: datetime,
) -> None:
    """Of a conversation that was erased meanwhile, it is to be deleted."""
    if timeline.is_erased(conn, tenant, conversation):
        made = [published.artifact]
        kv_deletions.ask(conn, tenant=tenant, conversation=conversation, artifacts=made, now=now)
        return
    artifacts.record(conn, tenant=tenant, conversation=conversation, published=published, now=now)


def refused_by(evidence: Evidence, turn: TurnId, attempt: int) -> KvRefused | None:
    if evidence.refusal is None:
        return None
    return KvRefused(
        turn=turn,
        attempt=attempt,
        engine=evidence.boot,
        engine_revision=evidence.revision,
        refusal=evidence.refusal,
    )
