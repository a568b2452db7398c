"""Conversations with answers, and forks of them, made by the flows."""

from typing import Any

from sqlalchemy import Connection

from service import conversation_flow
from service.domain.conversation import Conversation
from service.domain.events import ConversationId, Role, TurnId
from service.domain.new_items import NewMessage
from service.fork_flow import ForkPoint
from service.store import event_store, keys
from tests.flows.fleet import (
    ACME,
    NOW,
    Running,
    accept,
    add_engine,
    complete,
    completed,
    move_alias,
    new_id,
    pin,
)


def serving(conn: Connection, weights: str = "a") -> None:
    keys.create_tenant(conn, ACME)
    move_alias(conn, add_engine(conn, weights, f"boot_{weights}"))


def ask(conn: Connection, text: str, conversation: ConversationId | None = None, **changes: Any) -> Running:
    """One turn with an answer to `text`: ids 1..n of its letters, then one of the answer."""
    messages = (NewMessage(role=Role.USER, text=text),)
    accepted = accept(conn, conversation=conversation, messages=messages, **changes)
    running = Running(conversation=accepted.conversation, turn=accepted.turn)
    answer(conn, running, text)
    return running


def answer(conn: Connection, running: Running, text: str) -> None:
    pinned = pin(conn, running)
    last = pinned.head.last
    delta = tuple(map(ord, text))
    event = completed(
        pinned,
        text=f"to {text}",
        extends=last.turn if last else None,
        prompt_delta=delta,
        output=(7,),
        prompt_tokens=pinned.head.window_tokens + len(delta),
    )
    complete(conn, running, event)


def fork(
    conn: Connection, conversation: ConversationId, after: TurnId | None = None, **changes: Any
) -> ConversationId:
    given: dict[str, Any] = {
        "tenant": ACME,
        "alias": None,
        "on_upgrade": None,
        "metadata": None,
        "messages": (),
        "now": NOW,
        "new_id": new_id,
    }
    point = ForkPoint(conversation=conversation, after=after)
    return conversation_flow.fork_conversation(conn, point=point, **given | changes)


def load(conn: Connection, conversation: ConversationId) -> Conversation:
    return event_store.load_conversation(conn, ACME, conversation)


def said(conn: Connection, conversation: ConversationId) -> list[str]:
    return [item.text for item in load(conn, conversation).items]
