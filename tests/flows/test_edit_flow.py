"""Items that are added under a key while the same request is still at it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection, Engine, text

from service.conversation_flow import create_conversation
from service.domain.conversation import Item
from service.domain.events import ConversationId, Role
from service.domain.new_items import NewMessage
from service.edit_flow import Edit, Sent, add_items_once
from service.store import event_store, keys
from tests.flows.fleet import ACME, NOW, add_engine, move_alias, new_id

SENT = Sent(key="a", request_hash="ab" * 32, repeated=False)
PATIENCE_S = 20.0


def add(conn: Connection, conversation: ConversationId) -> tuple[Item, ...]:
    edit = Edit(tenant=ACME, conversation=conversation, head=None, now=NOW)
    return add_items_once(conn, edit, [NewMessage(role=Role.USER, text="x")], SENT, new_id)


def waits(engine: Engine, backend: int) -> bool:
    with engine.connect() as conn:
        blocked = text("SELECT cardinality(pg_blocking_pids(:backend)) > 0")
        return bool(conn.execute(blocked, {"backend": backend}).scalar_one())


def test_the_second_of_two_at_once_waits_and_finds_what_the_first_has_added(engine: Engine) -> None:
    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
        move_alias(conn, add_engine(conn, "a", "boot_a"))
        chat = create_conversation(
            conn,
            tenant=ACME,
            alias="production",
            on_upgrade=None,
            metadata={},
            messages=(),
            now=NOW,
            new_id=new_id,
        )
    begun, backends = threading.Event(), list[int]()

    def second() -> tuple[Item, ...]:
        with engine.begin() as conn:
            backends.append(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())
            begun.set()
            return add(conn, chat)

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as conn:
            first = add(conn, chat)
            again = pool.submit(second)
            assert begun.wait(PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not waits(engine, backends[0]):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert again.result(PATIENCE_S) == first
    with engine.begin() as conn:
        assert event_store.load_conversation(conn, ACME, chat).items == first
