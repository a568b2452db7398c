"""Of two that open a conversation under one key at once, the second waits for what the first has made."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from service.domain.errors import InvalidInput
from service.domain.events import ConversationCreated, ConversationId, TenantId
from service.opening_flow import open_once
from service.store import event_store

TENANT = TenantId("acme")
PATIENCE_S = 20.0
AWHILE_S = 0.5


def open_(engine: Engine, body: str, entered: threading.Event, go_on: threading.Event) -> str:
    with engine.begin() as conn:

        def make(conversation: ConversationId) -> ConversationId:
            entered.set()
            assert go_on.wait(PATIENCE_S)
            created = [ConversationCreated(alias="production")]
            now = datetime.now(UTC)
            event_store.append(
                conn, tenant=TENANT, stream=conversation, expected_version=0, events=created, now=now
            )
            return conversation

        return open_once(conn, TENANT, key="key", request_hash=body * 64, make=make)


def test_the_second_is_told_of_the_first(owner_engine: Engine) -> None:
    first_entered, second_entered, go_on = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(open_, owner_engine, "a", first_entered, go_on)
        assert first_entered.wait(PATIENCE_S)
        second = pool.submit(open_, owner_engine, "b", second_entered, go_on)
        assert not second_entered.wait(AWHILE_S)
        go_on.set()
        with pytest.raises(InvalidInput, match=first.result(PATIENCE_S)):
            second.result(PATIENCE_S)
    assert not second_entered.is_set()
