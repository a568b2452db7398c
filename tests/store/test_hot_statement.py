"""A hot statement runs in its connection's transaction, and fails as any other does."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError, NoResultFound, OperationalError, ProgrammingError

from service.store.connection import make_async_engine, make_engine
from service.store.hot_statement import HotStatement

TABLE = Table("hot", MetaData(), Column("number", Integer, primary_key=True), Column("word", Text))
ADD = HotStatement(insert(TABLE), columns=["number", "word"])
ALL = HotStatement(select(TABLE.c.number, TABLE.c.word).order_by(TABLE.c.number))
SAME = HotStatement(select(TABLE.c.number).where(TABLE.c.word == bindparam("word"), TABLE.c.number < 3))
WHOSE = HotStatement("SELECT pg_backend_pid() AS pid")


@pytest.fixture
def conn(owner_conn: Connection) -> Connection:
    owner_conn.execute(text("CREATE TABLE hot (number integer PRIMARY KEY, word text)"))
    return owner_conn


def add(conn: Connection, *words: str) -> None:
    for number, word in enumerate(words):
        ADD.run(conn, {"number": number, "word": word})


def test_rows_have_their_columns_by_name(conn: Connection) -> None:
    add(conn, "a", "b")
    assert [(row.number, row.word) for row in ALL.all(conn, {})] == [(0, "a"), (1, "b")]
    assert ALL.all(conn, {})[1]._asdict() == {"number": 1, "word": "b"}


def test_what_is_fixed_and_what_is_given_come_together(conn: Connection) -> None:
    add(conn, "a", "b", "a", "a")
    assert [row.number for row in SAME.all(conn, {"word": "a"})] == [0, 2]


def test_what_was_not_given_is_missed_and_not_taken_for_null(conn: Connection) -> None:
    with pytest.raises(ProgrammingError, match="word"):
        SAME.all(conn, {})


def test_one_row_is_asked_for_or_none(conn: Connection) -> None:
    add(conn, "a")
    assert SAME.one(conn, {"word": "a"}).number == 0
    assert SAME.one_or_none(conn, {"word": "z"}) is None
    with pytest.raises(NoResultFound):
        SAME.one(conn, {"word": "z"})


@pytest.fixture
def own_engine(database: str) -> Iterator[Engine]:
    engine = make_engine(database, application_name="hot", pool_size=1, role=None)
    yield engine
    engine.dispose()


def test_it_is_part_of_its_transaction(own_engine: Engine) -> None:
    one = HotStatement("INSERT INTO tenants (tenant_id) VALUES (%(tenant)s)")
    known = text("SELECT count(*) FROM tenants WHERE tenant_id = 'hot'")
    with own_engine.connect() as conn:
        one.run(conn, {"tenant": "hot"})  # as the first of all: the transaction begins with it
        assert conn.in_transaction()
        conn.rollback()
        assert conn.execute(known).scalar_one() == 0
    with own_engine.begin() as conn:
        one.run(conn, {"tenant": "hot"})
    with own_engine.begin() as conn:
        assert conn.execute(known).scalar_one() == 1


def test_what_the_database_refuses_is_told_as_for_any_statement(conn: Connection) -> None:
    add(conn, "secret")
    with pytest.raises(IntegrityError) as told:
        ADD.run(conn, {"number": 0, "word": "secret"})
    assert told.value.orig is not None
    assert told.value.orig.diag.constraint_name == "hot_pkey"  # type: ignore[attr-defined]
    assert "secret" not in str(told.value).partition("[SQL")[2]
    assert not told.value.connection_invalidated


def test_a_connection_that_broke_is_not_given_to_anybody_else(own_engine: Engine) -> None:
    with own_engine.connect() as conn:
        first = WHOSE.one(conn, {}).pid
        with pytest.raises(OperationalError) as told:
            HotStatement("SELECT pg_terminate_backend(pg_backend_pid())").run(conn, {})
        assert told.value.connection_invalidated
        assert conn.invalidated
    with own_engine.connect() as conn:
        assert WHOSE.one(conn, {}).pid != first


async def test_nor_is_one_whose_statement_was_cancelled(database: str) -> None:
    engine = make_async_engine(database, application_name="hot", pool_size=1, role=None)
    pids, begun = list[int](), asyncio.Event()

    def wait(conn: Connection) -> None:
        pids.append(WHOSE.one(conn, {}).pid)
        begun.set()
        HotStatement("SELECT pg_sleep(60)").run(conn, {})

    async def waiting() -> None:
        async with engine.connect() as conn:
            await conn.run_sync(wait)

    task = asyncio.create_task(waiting())
    await begun.wait()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with engine.connect() as again:
        assert (await again.run_sync(lambda conn: WHOSE.one(conn, {}))).pid not in pids
    await engine.dispose()


def test_whoever_watches_statements_sees_it(conn: Connection) -> None:
    seen: list[object] = []
    event.listen(conn, "before_cursor_execute", lambda *told: seen.append(("before", told[2], told[3])))
    event.listen(conn, "after_cursor_execute", lambda *told: seen.append(("after", told[1].rowcount)))
    ADD.run(conn, {"number": 1, "word": "a"})
    assert seen == [("before", ADD.text, {"number": 1, "word": "a"}), ("after", 1)]
