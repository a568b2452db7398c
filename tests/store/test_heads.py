"""What is read in part is what the whole history folds to, at every version, erased or not; and a head costs the same at any length."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Connection, text
from sqlalchemy.event import listen

from service.domain.errors import Internal
from service.domain.events import (
    ConversationErased,
    ConversationEvent,
    ConversationId,
    Event,
    TenantId,
    TurnId,
)
from service.domain.head import Head, head_of
from service.domain.transcript import Transcript
from service.store import event_store, heads
from service.store.ancestry import NEWEST
from tests.domain.random_histories import histories
from tests.store.histories import (
    ACME,
    CHAT,
    append,
    completed,
    created,
    pinned,
    said,
    started,
)
from tests.store.test_query_plans import plan_of

__all__ = ["plan_of"]


def answered(turns: int, name: str = "resp") -> list[Event]:
    told: list[Event] = [created()]
    for number in range(turns):
        turn = TurnId(f"{name}_{number}")
        told += [said("hello", f"msg_{number}"), started(turn), pinned(turn), completed(turn)]
    return told


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=histories(most=20))
def test_head_and_transcript_are_at_every_version_those_of_the_whole_history(
    conn: Connection, events: list[ConversationEvent]
) -> None:
    tenant = TenantId(uuid4().hex)
    for version, event in enumerate(events):
        append(conn, event, tenant=tenant, after=version)
        if isinstance(event, ConversationErased):
            event_store.erase_contents(conn, tenant=tenant, stream=CHAT)
        whole = event_store.load_conversation(conn, tenant, CHAT)
        assert heads.load_head(conn, tenant, CHAT) == head_of(whole)
        assert heads.load_transcript(conn, tenant, CHAT) == Transcript.of(whole)
        assert heads.load_window(conn, tenant, CHAT) == whole.window


def test_there_is_no_head_of_what_is_not_there(conn: Connection) -> None:
    assert not heads.load_head(conn, ACME, ConversationId("conv_none")).exists
    assert heads.load_transcript(conn, ACME, ConversationId("conv_none")) == Transcript()


def test_an_older_turn_is_there_if_it_is_asked_for(conn: Connection) -> None:
    append(conn, *answered(3))
    head = heads.load_head(conn, ACME, CHAT, turn=TurnId("resp_0"))
    assert list(head.turns) == ["resp_0", "resp_2"]
    assert list(heads.load_head(conn, ACME, CHAT, turn=TurnId("resp_9")).turns) == ["resp_2"]


def test_a_window_that_lost_token_ids_is_not_taken_for_a_whole_one(owner_conn: Connection) -> None:
    second = TurnId("resp_second")
    longer = replace(completed(second), extends=TurnId("resp_0"), prompt_tokens=8)
    append(owner_conn, *answered(1), said("and?", "msg_9"), started(second), pinned(second), longer)
    owner_conn.execute(text("ALTER TABLE event_contents DISABLE TRIGGER append_only"))
    owner_conn.execute(text("UPDATE event_contents SET tokens = substr(tokens, 5) WHERE stream_version = 5"))
    with pytest.raises(Internal, match="window of 10 tokens, and 9 are stored"):
        heads.load_window(owner_conn, ACME, CHAT)


def test_a_window_that_grows_while_it_is_read_is_the_one_that_its_head_tells_of(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = append(conn, *answered(1))
    window, load_head = heads.load_window(conn, ACME, CHAT), heads.load_head
    second = TurnId("resp_second")
    longer = replace(completed(second), extends=TurnId("resp_0"), prompt_tokens=8)

    def head_before_the_next_turn(*of: Any) -> Head:
        head = load_head(*of)
        append(conn, said("and?", "msg_9"), started(second), pinned(second), longer, after=version)
        return head

    monkeypatch.setattr(heads, "load_head", head_before_the_next_turn)
    assert heads.load_window(conn, ACME, CHAT) == window


def test_a_transcript_with_words_missing_is_not_taken_for_a_whole_one(owner_conn: Connection) -> None:
    append(owner_conn, *answered(3))
    owner_conn.execute(text("ALTER TABLE event_contents DISABLE TRIGGER USER"))
    owner_conn.execute(text("DELETE FROM event_contents WHERE stream_version = 5"))
    with pytest.raises(Internal, match="its bytes are missing"):
        heads.load_transcript(owner_conn, ACME, CHAT)


def test_c6_a_head_is_read_from_as_many_rows_after_many_turns_as_after_a_few(conn: Connection) -> None:
    def rows(conversation: str) -> Sequence[Any]:
        return conn.exec_driver_sql(
            heads.HEAD, {"tenant": ACME, "stream": conversation, "upto": NEWEST}
        ).all()

    append(conn, *answered(2), stream="conv_short")
    append(conn, *answered(30, "resp_long"), stream="conv_long")
    assert len(rows("conv_short")) == len(rows("conv_long")) == 4


@pytest.mark.parametrize("statement", [heads.HEAD, heads.TRANSCRIPT, heads.WINDOW])
def test_no_part_is_read_by_passing_over_other_conversations(
    owner_conn: Connection, plan_of: Callable[[str], str], statement: str
) -> None:
    given = {"tenant": "acme", "stream": "conv_7", "upto": NEWEST}
    explained = owner_conn.exec_driver_sql(f"EXPLAIN {statement}", given)
    plan = "\n".join(explained.scalars())
    assert "uq_events_stream_version" in plan
    assert "Seq Scan on events" not in plan, plan


@pytest.mark.parametrize("read", [heads.load_transcript, heads.load_window, event_store.load_conversation])
def test_a_long_history_is_not_compared_pair_by_pair_though_its_length_is_not_known_to_the_planner(
    conn: Connection, read: Callable[[Connection, TenantId, ConversationId], object]
) -> None:
    append(conn, *answered(30))
    removed: list[str] = []

    def explain(of: Connection, cursor: Any, statement: str, given: Any, *_: object) -> None:
        with cursor.connection.cursor() as plan:
            plan.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}", given)
            removed.extend(line for (line,) in plan if "Removed by Join Filter" in line)

    listen(conn, "before_cursor_execute", explain)
    read(conn, ACME, CHAT)
    assert not removed
