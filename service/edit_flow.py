"""What changes a conversation besides its turns; each function is one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from hashlib import sha256
from itertools import count

from sqlalchemy import Connection

from service.domain import decide
from service.domain.conversation import Item, accepted_item
from service.domain.errors import NotFound, key_reused
from service.domain.events import (
    ConversationEvent,
    ConversationId,
    ConversationUpdated,
    ItemId,
    OnUpgrade,
    TenantId,
    TurnId,
)
from service.domain.head import Head, advance_head
from service.domain.limits import NO_LIMITS, Limits
from service.domain.new_items import NewId, NewItem, accept_item
from service.store import artifacts, event_store, heads, turns

OF_KEY = 20
OF_BODY = 10
"""Hex digits of the ids of items that were added under a key: of one conversation's keys no two are alike in 80 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Of which conversation, and at which version of it, if the client named one."""

    tenant: TenantId
    conversation: ConversationId
    head: int | None
    now: datetime
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a request says of whether it was sent before."""

    key: str | None
    request_hash: str
    repeated: bool
    """Its client repeats it, under no key."""


def update_conversation(
    conn: Connection, edit: Edit, metadata: Mapping[str, str], policy: OnUpgrade | None = None
) -> None:
    """Args: policy: that the metadata says the conversation has.

    Raises: NotFound; HeadMoved; InvalidInput: it has another.
    """

    def updated(head: Head) -> tuple[ConversationEvent, ...]:
        decide.check_policy(head, policy)
        return (ConversationUpdated(metadata=dict(metadata)),)

    _edit(conn, edit, updated)


def delete_conversation(conn: Connection, edit: Edit) -> None:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open."""
    _edit(conn, edit, decide.delete_conversation)
    artifacts.forget_conversation(conn, edit.tenant, edit.conversation)


def add_items(conn: Connection, edit: Edit, items: Sequence[NewItem], new_id: NewId) -> tuple[Item, ...]:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open; InvalidInput: a limit of the tenant."""
    made = tuple(accept_item(one, new_id) for one in items)
    as_items = tuple(map(accepted_item, made))

    def added(head: Head) -> tuple[ConversationEvent, ...]:
        if edit.limits.items is not None or any(item.call is not None for item in as_items):
            there = heads.load_transcript(conn, edit.tenant, edit.conversation).items
            edit.limits.check("items", len(there) + len(made))
            decide.check_outputs(there, as_items, "items")
        return decide.add_items(head, made)

    _edit(conn, edit, added)
    return as_items


def add_items_once(
    conn: Connection, edit: Edit, items: Sequence[NewItem], sent: Sent, new_id: NewId
) -> tuple[Item, ...]:
    """The items that this very request added before, also those that are deleted by now; else as `add_items`.

    Raises: as that, and
        InvalidInput: the key has added other items to the conversation.
    """
    if sent.key is None and not sent.repeated:
        return add_items(conn, edit, items, new_id)
    state = event_store.load_conversation(conn, edit.tenant, edit.conversation, for_update=True)
    decide.check_there(state)
    if sent.key is None:
        newest = state.items[-len(items) :]
        same = state.open_turn is None and tuple(map(_wordings, newest)) == tuple(map(_new_wordings, items))
        return newest if same else add_items(conn, edit, items, new_id)
    marked = sha256(f"{edit.tenant}\0{edit.conversation}\0{sent.key}".encode()).hexdigest()[:OF_KEY]
    mine = marked + sent.request_hash[:OF_BODY]
    there = {_mark(item.id): item for item in (*state.items, *state.withdrawn)}
    known = sorted(mark for mark in there if mark.startswith(marked))
    if known and not known[0].startswith(mine):
        raise key_reused(sent.key, f"item {there[known[0]].id}")
    number = count()
    return tuple(there[mark] for mark in known) or add_items(
        conn, edit, items, lambda prefix: f"{prefix}{mine}{next(number):02x}"
    )


def delete_item(conn: Connection, edit: Edit, item: ItemId) -> None:
    """Raises: NotFound; HeadMoved; ConversationLocked: a turn is open."""

    def deleted(head: Head) -> tuple[ConversationEvent, ...]:
        there = heads.load_transcript(conn, edit.tenant, edit.conversation).items
        return decide.delete_item(head, [one.id for one in there], item)

    if _edit(conn, edit, deleted).window_tokens == 0:
        # Made of tokens that no prompt begins with any more, some of which somebody wanted gone.
        artifacts.forget_conversation(conn, edit.tenant, edit.conversation)


def delete_response(
    conn: Connection, tenant: TenantId, turn: TurnId, now: datetime, *, seen: int | None = None
) -> None:
    """Args: seen: the version of its conversation that the client has seen; None where it does not matter to it.

    Raises: NotFound; HeadMoved; InvalidInput: it has not ended.
    """
    conversation = turns.find_turn(conn, tenant, turn)
    if conversation is None:
        raise NotFound("response", turn)
    head = heads.load_head(conn, tenant, conversation, for_update=True, turn=turn)
    decide.find_response(head, turn)
    decide.check_head(head, seen)
    _append(conn, head, decide.delete_response(head, turn), now)


def _mark(item: ItemId) -> str:
    return item.partition("_")[2]


def _wordings(item: Item) -> Item:
    return replace(item, id=ItemId(""))


def _new_wordings(new: NewItem) -> Item:
    return accepted_item(accept_item(new, lambda _: ""))


def _edit(conn: Connection, edit: Edit, decided: Callable[[Head], tuple[ConversationEvent, ...]]) -> Head:
    head = heads.load_head(conn, edit.tenant, edit.conversation, for_update=True)
    decide.check_there(head)
    decide.check_head(head, edit.head)
    return _append(conn, head, decided(head), edit.now)


def _append(conn: Connection, head: Head, events: Sequence[ConversationEvent], now: datetime) -> Head:
    event_store.append(
        conn, tenant=head.tenant, stream=head.id, expected_version=head.version, events=events, now=now
    )
    return reduce(advance_head, events, head)
