"""Whoever connects for the service gets its role and its limits, whatever the server's own settings."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from psycopg.errors import QueryCanceled
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from service.domain.errors import InvalidInput
from service.store.connection import ALONE, BEGIN_WITH, make_async_engine, make_engine, parse_url
from service.store.hot_statement import HotStatement
from tests.store.histories import append, created

LIMITS = {
    "statement_timeout": "15s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "application_name": "tests",
}


def settings(conn: Connection) -> dict[str, str]:
    return {name: conn.execute(text(f"SHOW {name}")).scalar_one() for name in LIMITS}


def role(conn: Connection) -> str:
    found: str = conn.execute(text("SELECT current_user")).scalar_one()
    return found


@pytest.fixture
def own_engine(shared_database: str) -> Iterator[Engine]:
    engine = make_engine(shared_database, application_name="tests", pool_size=1)
    yield engine
    engine.dispose()


def test_the_service_connects_under_its_role_with_limits(own_engine: Engine) -> None:
    with own_engine.connect() as conn:
        assert role(conn) == "everturn_fleet"
        assert settings(conn) == LIMITS


async def test_the_async_engine_does_the_same_and_runs_the_same_functions(shared_database: str) -> None:
    engine = make_async_engine(shared_database, application_name="tests", pool_size=1)
    async with engine.connect() as connection:
        assert await connection.run_sync(role) == "everturn_service"
        assert await connection.run_sync(settings) == LIMITS
        await connection.run_sync(
            lambda conn: conn.execute(text("SELECT set_config('app.tenant', 'acme', true)"))
        )
        assert await connection.run_sync(lambda conn: append(conn, created())) == 1
    await engine.dispose()


async def test_the_connections_of_a_burst_are_kept_and_the_one_used_last_comes_next(
    shared_database: str,
) -> None:
    engine = make_async_engine(shared_database, application_name="tests", pool_size=3)

    async def backends(count: int) -> list[int]:
        async with AsyncExitStack() as held:
            opened = [await held.enter_async_context(engine.connect()) for _ in range(count)]
            return [(await one.execute(text("SELECT pg_backend_pid()"))).scalar_one() for one in opened]

    burst = await backends(3)
    assert set(await backends(3)) == set(burst)
    assert await backends(1) == await backends(1) == (await backends(3))[:1]
    await engine.dispose()


def test_without_a_role_the_login_keeps_its_rights(shared_database: str) -> None:
    engine = make_engine(shared_database, application_name="tests", role=None)
    with engine.connect() as conn:
        assert role(conn) == "postgres"
    engine.dispose()


def test_options_of_the_url_are_kept_but_cannot_lift_the_limits(shared_database: str) -> None:
    url = f"{shared_database}&options=-c%20work_mem%3D7MB%20-c%20statement_timeout%3D0"
    engine = make_engine(url, application_name="tests")
    with engine.connect() as conn:
        assert conn.execute(text("SHOW work_mem")).scalar_one() == "7MB"
        assert settings(conn) == LIMITS
    engine.dispose()


def test_a_connection_that_died_in_the_pool_is_replaced(own_engine: Engine, owner_conn: Connection) -> None:
    with own_engine.connect() as conn:
        backend = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
    owner_conn.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": backend})
    with own_engine.connect() as conn:
        assert conn.execute(text("SELECT pg_backend_pid()")).scalar_one() != backend


async def test_so_is_one_of_the_async_engine(shared_database: str, owner_conn: Connection) -> None:
    engine = make_async_engine(shared_database, application_name="tests", pool_size=1)
    async with engine.connect() as conn:
        backend = (await conn.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    owner_conn.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": backend})
    async with engine.connect() as conn:
        assert (await conn.execute(text("SELECT pg_backend_pid()"))).scalar_one() != backend
    await engine.dispose()


def test_a_quiet_connection_is_taken_without_a_round_trip(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_engine.connect().close()
    monkeypatch.setattr(own_engine.dialect, "do_ping", lambda _: pytest.fail("it was pinged"))
    own_engine.connect().close()


def test_a_connection_with_news_that_still_serves_is_kept(own_engine: Engine, owner_conn: Connection) -> None:
    with own_engine.connect() as conn:
        backend = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
        conn.execute(text("LISTEN news"))
        conn.commit()
    owner_conn.execute(text("NOTIFY news"))
    owner_conn.commit()
    with own_engine.connect() as conn:
        assert conn.execute(text("SELECT pg_backend_pid()")).scalar_one() == backend


def test_a_transaction_begins_in_one_message_with_what_holds_for_it(own_engine: Engine) -> None:
    sent: list[str] = []
    event.listen(own_engine, "before_cursor_execute", lambda *told: sent.append(told[2]))
    tenant = text("SELECT current_setting('app.tenant', true)")
    limited = own_engine.execution_options(**{BEGIN_WITH: ("SELECT set_config('app.tenant', 'acme', true)",)})
    with limited.begin() as conn:
        assert conn.execute(tenant).scalar_one() == "acme"
    with own_engine.begin() as conn:
        assert conn.execute(tenant).scalar_one() in (None, "")
    assert [one for one in sent if "BEGIN" in one] == [
        "BEGIN; SELECT set_config('app.tenant', 'acme', true)",
        "BEGIN",
    ]


def test_what_a_transaction_wrote_goes_with_it_unless_it_is_committed(own_engine: Engine) -> None:
    """Although the driver is told to begin none."""
    key = {"tenant": "acme", "stream": "conv_begun"}
    query = text("SELECT count(*) FROM events WHERE tenant_id = :tenant AND stream = :stream")
    with own_engine.connect() as conn:
        append(conn, created(), stream=key["stream"])
        assert conn.execute(query, key).scalar_one() == 1
    with own_engine.connect() as conn:
        assert conn.execute(query, key).scalar_one() == 0


def test_a_snapshot_stays_one_and_so_does_what_holds_for_it(own_engine: Engine) -> None:
    """The driver begins it; what the pool gives out next begins as ever."""
    begun = {BEGIN_WITH: ("SELECT set_config('app.tenant', 'acme', true)",)}
    for level, shown in (("REPEATABLE READ", "repeatable read"), (None, "read committed")):
        options = begun if level is None else begun | {"isolation_level": level}
        with own_engine.connect().execution_options(**options) as conn:
            assert conn.execute(text("SHOW transaction_isolation")).scalar_one() == shown
            assert conn.execute(text("SELECT current_setting('app.tenant')")).scalar_one() == "acme"
            conn.rollback()
            assert conn.execute(text("SELECT current_setting('app.tenant')")).scalar_one() == "acme"


def test_who_wants_no_transaction_has_none(own_engine: Engine) -> None:
    with own_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        own = [conn.execute(text("SELECT pg_current_xact_id()::text")).scalar_one() for _ in range(2)]
    assert own[0] != own[1]


def test_what_stands_alone_is_one_message_and_leaves_nothing_on_its_connection(own_engine: Engine) -> None:
    sent: list[str] = []
    event.listen(own_engine, "before_cursor_execute", lambda *told: sent.append(told[2]))
    own = HotStatement("SELECT pg_current_xact_id()::text AS xact, pg_backend_pid() AS pid")
    with own_engine.connect().execution_options(**{ALONE: True}) as conn:
        first, second = own.one(conn, {}), own.one(conn, {})
        assert first.xact != second.xact
    assert sent == [own.text] * 2
    with own_engine.begin() as conn:
        assert own.one(conn, {}).pid == first.pid
        assert own.one(conn, {}).xact == own.one(conn, {}).xact
    assert sent[2] == "BEGIN"


def test_a_statement_ends_by_its_limit(conn: Connection) -> None:
    conn.execute(text("SET LOCAL statement_timeout = '10ms'"))
    with pytest.raises(DBAPIError) as caught:
        conn.execute(text("SELECT pg_sleep(5)"))
    assert isinstance(caught.value.orig, QueryCanceled)


@pytest.mark.parametrize(
    "text",
    ["postgres://u:p@h:1/d", "postgresql://u:p@h:1/d", "postgresql+psycopg2://u:p@h:1/d"],
)
def test_every_spelling_of_a_postgres_url_means_the_one_driver(text: str) -> None:
    url = parse_url(text)
    assert (url.drivername, url.host, url.database) == ("postgresql+psycopg", "h", "d")


@pytest.mark.parametrize("text", ["", "sqlite://", "host=/tmp dbname=x", "postgresql://h:notaport/d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="database URL") as caught:
        parse_url(text)
    assert caught.value.param == "database_url"
