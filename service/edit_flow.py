"""What changes a conversation besides its turns; each function is one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from sqlalchemy import Connection

from service.conversation_flow import NewId, NewMessage, new_message
from service.domain import decide
from service.domain.conversation import Conversation, Item, evolve
from service.domain.errors import NotFound
from service.domain.events import (
    ConversationEvent,
    ConversationId,
    ConversationUpdated,
    ItemId,
    TenantId,
    TurnId,
)
from service.domain.limits import NO_LIMITS, Limits
from service.store import artifacts, event_store, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Of which conversation, and at which version of it, if the client named one."""

    tenant: TenantId
    conversation: ConversationId
    head: int | None
    now: datetime
    limits: Limits = NO_LIMITS


def update_conversation(conn: Connection, edit: Edit, metadata: Mapping[str, str]) -> None:
    """Raises: NotFound; HeadMoved."""
    _edit(conn, edit, lambda _: (ConversationUpdated(metadata=dict(metadata)),))


def delete_conversation(conn: Connection, edit: Edit) -> None:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open."""
    _edit(conn, edit, decide.delete_conversation)
    artifacts.forget_conversation(conn, edit.tenant, edit.conversation)


def add_items(
    conn: Connection, edit: Edit, messages: Sequence[NewMessage], new_id: NewId
) -> tuple[Item, ...]:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open; InvalidInput: a limit of the tenant."""
    made = tuple(new_message(m, new_id) for m in messages)

    def added(state: Conversation) -> tuple[ConversationEvent, ...]:
        edit.limits.check("items", len(state.items) + len(made))
        return decide.add_items(state, made)

    return _edit(conn, edit, added).items[-len(made) :]


def delete_item(conn: Connection, edit: Edit, item: ItemId) -> None:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open."""
    state = _edit(conn, edit, lambda state: decide.delete_item(state, item))
    if not state.segments:
        # Made of tokens that no prompt begins with any more, some of which somebody wanted gone.
        artifacts.forget_conversation(conn, edit.tenant, edit.conversation)


def delete_response(conn: Connection, tenant: TenantId, turn: TurnId, now: datetime) -> None:
    """Raises: NotFound; InvalidInput: it has not ended."""
    conversation = turns.find_turn(conn, tenant, turn)
    if conversation is None:
        raise NotFound("response", turn)
    state = event_store.load_conversation(conn, tenant, conversation, for_update=True)
    _append(conn, state, decide.delete_response(state, turn), now)


def _edit(
    conn: Connection, edit: Edit, decided: Callable[[Conversation], tuple[ConversationEvent, ...]]
) -> Conversation:
    state = event_store.load_conversation(conn, edit.tenant, edit.conversation, for_update=True)
    decide.check_there(state)
    decide.check_head(state, edit.head)
    return _append(conn, state, decided(state), edit.now)


def _append(
    conn: Connection, state: Conversation, events: Sequence[ConversationEvent], now: datetime
) -> Conversation:
    event_store.append(
        conn, tenant=state.tenant, stream=state.id, expected_version=state.version, events=events, now=now
    )
    return reduce(evolve, events, state)
