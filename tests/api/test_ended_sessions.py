"""A session that ends before COMMIT leaves nothing, so its transaction runs again; one that ends with COMMIT is told of."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from psycopg.errors import AdminShutdown
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from service.api import database as api_database
from service.api.database import ALL_TENANTS, TRIES, Database
from service.store.hot_statement import HotStatement


@pytest.fixture
async def used(database: str) -> AsyncIterator[Database]:
    made = Database.at(database, application_name="tests", pool_size=1)
    yield made
    await made.close()


One = Callable[[Connection], object]


@pytest.fixture(params=["by the driver", "by SQLAlchemy"])
def statement(request: pytest.FixtureRequest) -> One:
    by_the_driver: One = partial(HotStatement("SELECT 1 AS one").all, given={})
    return (
        by_the_driver
        if request.param == "by the driver"
        else lambda conn: conn.execute(text("SELECT 1 AS one"))
    )


class Ended:
    """A transaction whose session is ended before its statement, in the first `times` that it is run."""

    def __init__(self, owner: Engine, statement: One, *, times: int) -> None:
        self._owner, self._statement, self._times = owner, statement, times
        self.begun = 0

    def __call__(self, conn: Connection) -> int:
        self.begun += 1
        if self.begun <= self._times:
            driver: Any = conn.connection.driver_connection
            with self._owner.connect() as other:
                other.execute(
                    text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": driver.info.backend_pid}
                )
        self._statement(conn)
        return self.begun


async def test_a_transaction_is_run_again(used: Database, owner_engine: Engine, statement: One) -> None:
    assert await used.run(Ended(owner_engine, statement, times=1), reach=ALL_TENANTS) == 2


async def test_a_look_is_taken_again(used: Database, owner_engine: Engine, statement: One) -> None:
    assert await used.look(Ended(owner_engine, statement, times=TRIES - 1)) == TRIES


async def test_one_that_never_gets_there_fails_with_what_ended_it(
    used: Database, owner_engine: Engine, statement: One
) -> None:
    transaction = Ended(owner_engine, statement, times=TRIES)
    with pytest.raises(OperationalError) as told:
        await used.run(transaction, reach=ALL_TENANTS)
    assert isinstance(told.value.orig, AdminShutdown)
    assert await used.run(transaction, reach=ALL_TENANTS) == TRIES + 1


async def test_what_may_have_been_committed_is_not_run_again(used: Database, owner_engine: Engine) -> None:
    with owner_engine.begin() as conn:
        conn.exec_driver_sql(ENDING_WITH_COMMIT)
    transaction = Ended(
        owner_engine, lambda conn: conn.exec_driver_sql("INSERT INTO ending VALUES (1)"), times=0
    )
    with pytest.raises(DBAPIError) as told:
        await used.run(transaction, reach=ALL_TENANTS)
    assert isinstance(told.value.orig, AdminShutdown)
    assert transaction.begun == 1


async def test_one_that_took_too_long_is_not_run_again(used: Database, owner_engine: Engine) -> None:
    slow = Ended(owner_engine, lambda conn: conn.execute(text("SELECT pg_sleep(5)")), times=0)
    with pytest.raises(OperationalError):
        await used.run(slow, reach=ALL_TENANTS, within_s=0.2)
    assert slow.begun == 1


async def test_one_whose_session_ended_late_is_not_run_again(
    used: Database, owner_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_database, "SOON_S", 0.0)
    late = Ended(owner_engine, lambda conn: conn.execute(text("SELECT 1")), times=1)
    with pytest.raises(OperationalError):
        await used.run(late, reach=ALL_TENANTS)
    assert late.begun == 1


ENDING_WITH_COMMIT = """
CREATE TABLE ending (number integer);
GRANT INSERT ON ending TO PUBLIC;
CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER with_commit AFTER INSERT ON ending
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION end_session();
"""
