"""Appending to a stream, alone and against others: the database decides who was first."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from time import monotonic, sleep

import pytest
from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.exc import InvalidRequestError

from service.api.database import Reach, limits
from service.domain.conversation import Conversation
from service.domain.errors import FenceLost, Internal, VersionConflict
from service.domain.events import (
    FLEET,
    AliasMoved,
    ConversationId,
    Event,
    MessageAccepted,
    TenantId,
    TurnId,
)
from service.store import event_store, winner
from service.store.connection import BEGIN_WITH, SERVICE_ROLE, make_async_engine, make_engine
from tests.store.histories import (
    ACME,
    CHAT,
    TURN,
    V13,
    append,
    completed,
    created,
    pinned,
    said,
    started,
    store,
)
from tests.store.test_query_plans import plan_of

__all__ = ["plan_of"]

OTHER_CHAT = ConversationId("conv_2")
WRITERS = 50
WON = (
    r"version 1 of stream conv_1 went to another writer, for its 'message\.accepted' of 2026-01-02 03:04:05:"
)


def read_texts(conn: Connection) -> list[str]:
    history = event_store.read(conn, tenant=ACME, stream=CHAT)
    return [event.text for event in history if isinstance(event, MessageAccepted)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 10
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


def waits_for_a_lock(engine: Engine) -> bool:
    with engine.connect() as conn:
        return bool(conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_append_returns_the_new_version(conn: Connection) -> None:
    assert append(conn, created(), said("one")) == 2
    assert append(conn, said("two"), after=2) == 3


def test_events_are_read_in_the_order_of_their_versions(conn: Connection) -> None:
    texts = [f"message {number}" for number in range(40)]
    append(conn, *map(said, texts))
    assert read_texts(conn) == texts


def test_reading_after_a_version_leaves_out_what_came_before(conn: Connection) -> None:
    append(conn, created(), said("one"), said("two"))
    assert event_store.read(conn, tenant=ACME, stream=CHAT, after_version=2) == [said("two")]


def test_streams_of_the_same_name_are_apart_between_tenants(conn: Connection) -> None:
    append(conn, created())
    assert append(conn, created(), tenant=TenantId("other")) == 1
    assert len(event_store.read(conn, tenant=ACME, stream=CHAT)) == 1


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_append_at_another_version_conflicts_and_writes_nothing(conn: Connection, expected: int) -> None:
    append(conn, created(), said("one"))
    with pytest.raises(VersionConflict, match="at version 2"):
        append(conn, said("two"), after=expected)
    assert read_texts(conn) == ["one"]


def test_an_append_is_one_statement_and_one_round_trip(conn: Connection) -> None:
    sent: list[str] = []

    def count(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    conn.execute(select(1))  # a transaction that has begun
    event.listen(conn, "before_cursor_execute", count)
    append(conn, created(), said("one"), started(), pinned(), completed())
    assert len(sent) == 1
    with pytest.raises(VersionConflict):
        append(conn, said("two"), after=2)
    assert len(sent) == 2


def test_a_version_that_is_behind_draws_no_number_of_the_sequence(owner_engine: Engine) -> None:
    drawn = text("SELECT last_value FROM events_position_seq")
    with owner_engine.begin() as conn:
        append(conn, created())
        before = conn.execute(drawn).scalar_one()
        with pytest.raises(VersionConflict):
            append(conn, said("late"), after=0)
        assert conn.execute(drawn).scalar_one() == before


def test_appending_nothing_still_compares(conn: Connection) -> None:
    append(conn, created())
    assert append(conn, after=1) == 1
    with pytest.raises(VersionConflict):
        append(conn, after=0)


def test_the_second_of_two_racing_writers_conflicts_when_the_first_commits(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            append(first, said("first"))
            second = pool.submit(store, engine, said("second"))
            wait_until(lambda: waits_for_a_lock(engine))
        with pytest.raises(VersionConflict, match=WON):
            second.result()
    with engine.connect() as conn:
        assert read_texts(conn) == ["first"]


def test_a_tenants_own_transaction_is_told_who_won_and_can_be_used_no_more(
    database: str, engine: Engine
) -> None:
    """Under row security, whose tenant ends with the transaction."""
    of_tenant = make_engine(database, application_name="acme", role=SERVICE_ROLE)
    own = of_tenant.execution_options(**{BEGIN_WITH: limits(Reach(tenant=ACME))})

    def lose() -> None:
        with own.begin() as conn:
            append(conn, said("elsewhere"), stream=OTHER_CHAT)
            try:
                append(conn, said("second"))
            finally:
                with pytest.raises(InvalidRequestError, match="closed transaction"):
                    append(conn, said("later"), stream="conv_3")

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            append(first, said("first"))
            second = pool.submit(lose)
            wait_until(lambda: waits_for_a_lock(engine))
        with pytest.raises(VersionConflict, match=WON):
            second.result()
    of_tenant.dispose()
    with engine.connect() as conn:
        assert conn.execute(text("SELECT DISTINCT stream FROM events")).scalars().all() == [CHAT]


def test_a_race_that_is_lost_within_a_savepoint_leaves_what_came_before_it(engine: Engine) -> None:
    def lose() -> str:
        with engine.begin() as conn:
            append(conn, said("elsewhere"), stream=OTHER_CHAT)
            with pytest.raises(VersionConflict) as caught, conn.begin_nested():
                append(conn, said("second"))
            append(conn, said("later"), stream=OTHER_CHAT, after=1)
        return str(caught.value)

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            append(first, said("first"))
            second = pool.submit(lose)
            wait_until(lambda: waits_for_a_lock(engine))
        assert re.search(WON, second.result())
    with engine.connect() as conn:
        assert read_texts(conn) == ["first"]
        assert len(event_store.read(conn, tenant=ACME, stream=OTHER_CHAT)) == 2


def test_the_asynchronous_service_is_told_who_won(database: str, engine: Engine) -> None:
    async def lose() -> None:
        slow = make_async_engine(database, application_name="api")
        own = slow.execution_options(**{BEGIN_WITH: limits(Reach(tenant=ACME))})
        try:
            async with own.begin() as conn:
                await conn.run_sync(lambda sync: append(sync, said("second")))
        finally:
            await slow.dispose()

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            append(first, said("first"))
            second = pool.submit(lambda: asyncio.run(lose()))
            wait_until(lambda: waits_for_a_lock(engine))
        with pytest.raises(VersionConflict, match=WON):
            second.result()


def test_who_lost_to_somebody_it_cannot_ask_about_is_still_told_that_it_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(winner, "WINNER", "SELECT type FROM nowhere")
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            append(first, said("first"))
            second = pool.submit(store, engine, said("second"))
            wait_until(lambda: waits_for_a_lock(engine))
        with pytest.raises(VersionConflict, match="conv_1 went to another writer: read it again"):
            second.result()
    assert 'who won version 1 of conv_1 cannot be asked: relation "nowhere" does not exist' in caplog.text


def test_the_second_of_two_racing_writers_wins_when_the_first_rolls_back(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as first:
            append(first, said("first"))
            second = pool.submit(store, engine, said("second"))
            wait_until(lambda: waits_for_a_lock(engine))
            first.rollback()
        second.result()
    with engine.connect() as conn:
        assert read_texts(conn) == ["second"]


def test_c1_fifty_writers_of_one_conversation_lose_and_double_nothing(database: str) -> None:
    engine = make_engine(database, application_name="writers", pool_size=WRITERS)
    ready = Barrier(WRITERS)

    def write(number: int) -> int:
        """Returns how often it lost."""
        ready.wait()
        for losses in range(WRITERS * 4):
            with engine.connect() as conn:
                version = event_store.load_conversation(conn, ACME, CHAT).version
                try:
                    append(conn, said(f"{number} asks"), said(f"{number} adds"), after=version)
                    conn.commit()
                except VersionConflict:
                    continue
                return losses
        raise AssertionError("never got through")

    with ThreadPoolExecutor(WRITERS) as pool:
        losses = list(pool.map(write, range(WRITERS)))
    with engine.connect() as conn:
        texts = read_texts(conn)
        versions = conn.execute(text("SELECT stream_version FROM events ORDER BY 1")).scalars().all()
    engine.dispose()
    assert sum(losses) > 0
    assert versions == list(range(1, 2 * WRITERS + 1))
    assert texts[1::2] == [asked.replace("asks", "adds") for asked in texts[0::2]]
    assert sorted(texts[0::2]) == sorted(f"{number} asks" for number in range(WRITERS))


@pytest.mark.parametrize(
    ("again", "after", "said_of_it"),
    [
        (
            completed(attempt=2),
            0,
            "Turn resp_1 has its 'turn.completed' already, of attempt 1 on engine boot_new, conv_1 at 2026-01-02 03:04:05",
        ),
        (
            pinned(attempt=2),
            5,
            "Attempt 2 of turn resp_1 has its 'turn.pinned' already, of attempt 2 on engine boot_new, conv_1 at",
        ),
        (started(), 5, "Turn resp_1 has its 'turn.started' already, of conv_1 at 2026-01-02 03:04:05"),
    ],
    ids=["completed, whatever the stream", "pinned", "started"],
)
def test_what_a_turn_does_once_is_refused_with_whose_it_is_and_what_becomes_of_it(
    engine: Engine, again: Event, after: int, said_of_it: str
) -> None:
    store(engine, created(), started(), pinned(), pinned(attempt=2), completed())
    with (
        pytest.raises(FenceLost, match=f"^{re.escape(said_of_it)}.*: that one stands, ") as lost,
        engine.begin() as conn,
    ):
        append(conn, again, stream=CHAT if after else OTHER_CHAT, after=after)
    assert str(lost.value).endswith("Read the turn again to see what became of it.")
    with engine.connect() as conn:
        assert len(event_store.read(conn, tenant=ACME, stream=CHAT)) == 5
        assert event_store.read(conn, tenant=ACME, stream=OTHER_CHAT) == []


def test_who_holds_what_a_turn_does_once_is_found_by_index(
    plan_of: Callable[[str], str], owner_conn: Connection
) -> None:
    plan_of("SELECT 1")
    for lost, index in (
        (started(), "uq_events_turn_started"),
        (pinned(), "uq_events_turn_pinned"),
        (completed(), "uq_events_turn_completed"),
    ):
        attempt = winner.OF_ATTEMPT if lost.name == "turn.pinned" else ""
        query = f"EXPLAIN {winner.HOLDER.format(type=lost.name, attempt=attempt)}"
        given = {"tenant": "acme", "turn": "resp_7", "attempt": "1"}
        assert index in "\n".join(owner_conn.exec_driver_sql(query, given).scalars())


def test_the_same_turn_id_of_another_tenant_is_not_in_the_way(conn: Connection) -> None:
    append(conn, started(), pinned(), completed())
    assert append(conn, started(), pinned(), completed(), tenant=TenantId("other")) == 3


def test_a_nameless_stream_is_refused(conn: Connection) -> None:
    with pytest.raises(Internal, match="ck_events_stream"):
        append(conn, created(), stream="")


def test_an_unknown_conversation_folds_to_version_zero(conn: Connection) -> None:
    assert event_store.load_conversation(conn, ACME, CHAT) == Conversation(tenant=ACME, id=CHAT)


def test_a_conversation_folds_with_its_window(conn: Connection) -> None:
    first = replace(completed(), prompt_delta=(7, 2**32 - 1), output=(8,))
    second = replace(completed(TurnId("resp_2")), extends=TURN, prompt_delta=(9,), output=(10, 11))
    append(
        conn,
        *(created(), said("hi \x00 \ud800"), started(), pinned(), first),
        *(said("and?"), started(second.turn), pinned(second.turn), second),
    )
    state = event_store.load_conversation(conn, ACME, CHAT)
    assert state.version == 9
    assert state.items[0].text == "hi \x00 \ud800"
    assert state.window == (7, 2**32 - 1, 8, 9, 10, 11)


def test_an_event_of_the_fleet_in_a_conversation_is_refused(conn: Connection) -> None:
    append(conn, created(), AliasMoved(alias="production", revision=V13, previous=None, by="key_1"))
    with pytest.raises(Internal, match=r"'alias\.moved'"):
        event_store.load_conversation(conn, ACME, CHAT)


def test_loading_for_update_makes_the_next_such_load_wait_and_see_what_was_written(engine: Engine) -> None:
    def load() -> int:
        with engine.connect() as conn:
            return event_store.load_conversation(conn, ACME, CHAT, for_update=True).version

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as conn:
            event_store.load_conversation(conn, ACME, CHAT, for_update=True)
            later = pool.submit(load)
            wait_until(lambda: waits_for_a_lock(engine))
            append(conn, created())
        assert later.result() == 1


def test_loading_for_update_lets_other_conversations_and_tenants_pass(engine: Engine) -> None:
    with engine.connect() as holder, engine.connect() as other:
        event_store.load_conversation(holder, ACME, CHAT, for_update=True)
        event_store.load_conversation(other, ACME, OTHER_CHAT, for_update=True)
        event_store.load_conversation(other, TenantId("other"), CHAT, for_update=True)
        assert event_store.load_conversation(other, ACME, CHAT).version == 0


def test_readers_of_the_whole_log_have_the_transaction_to_order_by(engine: Engine) -> None:
    store(engine, created(), said("one"))
    store(engine, AliasMoved(alias="a", revision=V13, previous=None, by="k"), stream="alias/a", tenant=FLEET)
    with engine.connect() as conn:
        order = text("SELECT position, txid::text::bigint FROM events ORDER BY position")
        (p1, t1), (p2, t2), (p3, t3) = conn.execute(order)
    assert p1 < p2 < p3
    assert t1 == t2 < t3


def test_more_events_than_a_statement_takes_are_one_append(conn: Connection) -> None:
    told: list[Event] = [
        created(),
        *(said(f"{number}", f"msg_{number}") for number in range(2 * event_store.AT_ONCE)),
    ]
    assert append(conn, *told) == len(told)
    assert event_store.read(conn, tenant=ACME, stream=CHAT) == told
    assert (
        conn.execute(text("SELECT count(*) FROM audit.chain_breaks WHERE tenant_id = 'acme'")).scalar_one()
        == 0
    )


def test_of_a_long_append_at_the_wrong_version_nothing_is_written(conn: Connection) -> None:
    append(conn, created())
    with pytest.raises(VersionConflict, match=r"at version 1, where 'conversation\.created'"):
        append(
            conn, *(said(f"{number}", f"msg_{number}") for number in range(2 * event_store.AT_ONCE)), after=2
        )
    assert len(event_store.read(conn, tenant=ACME, stream=CHAT)) == 1
