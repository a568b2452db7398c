"""What a request's transactions may see follows from its key, and ends with each transaction."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from psycopg.errors import ReadOnlySqlTransaction
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from service.api.database import ALL_TENANTS, AUDIT_VIEWS, Database, Reach, reach_for
from service.domain.events import TenantId
from service.store.connection import make_async_engine
from tests.store.histories import ACME, created, store

OTHER = TenantId("other")


@pytest.fixture
async def limited(database: str, engine: Engine) -> AsyncIterator[Database]:
    """On one connection, over which all transactions pass in turn."""
    for tenant in (ACME, OTHER):
        store(engine, created(), tenant=tenant)
    made = Database(make_async_engine(database, application_name="tests", pool_size=1))
    yield made
    await made.close()


@pytest.fixture
async def looking(database: str, engine: Engine) -> AsyncIterator[Database]:
    for tenant in (ACME, OTHER):
        store(engine, created(), tenant=tenant)
    made = Database.at(database, application_name="tests", pool_size=1)
    yield made
    await made.close()


TENANT_SET = text("SELECT current_setting('app.tenant', true)")


def owners(conn: Connection) -> set[str]:
    return set(conn.execute(text("SELECT tenant_id FROM events")).scalars())


async def test_without_a_checked_key_nothing_is_seen(limited: Database) -> None:
    assert await limited.run(owners) == set()


async def test_a_tenants_reach_is_its_own_rows_also_in_the_tasks_it_starts(limited: Database) -> None:
    reach_for(Reach(tenant=ACME))
    assert await limited.run(owners) == {ACME}
    assert await asyncio.create_task(limited.run(owners)) == {ACME}


async def test_a_wider_reach_ends_with_its_transaction(limited: Database) -> None:
    reach_for(Reach(tenant=ACME))
    assert await limited.run(owners, reach=ALL_TENANTS) == {ACME, OTHER}
    assert await limited.run(owners) == {ACME}
    assert await limited.run(owners, reach=Reach()) == set()


async def test_a_look_sees_all_tenants_and_leaves_no_trace(looking: Database) -> None:
    reach_for(Reach(tenant=ACME))
    assert await looking.run(owners) == {ACME}
    assert await looking.look(owners) == {ACME, OTHER}
    assert await looking.run(owners) == {ACME}
    assert await looking.look(lambda conn: conn.execute(TENANT_SET).scalar_one()) in (None, "")
    assert await looking.run(owners, reach=Reach()) == set()


async def test_a_look_changes_nothing(looking: Database) -> None:
    change = text("INSERT INTO tenants (tenant_id) VALUES ('new')")
    with pytest.raises(DBAPIError) as caught:
        await looking.look(lambda conn: conn.execute(change))
    assert isinstance(caught.value.orig, ReadOnlySqlTransaction)
    assert await looking.look(owners) == {ACME, OTHER}


async def test_an_auditors_reach_is_the_views(limited: Database) -> None:
    read = "SELECT has_table_privilege('events', 'SELECT'), has_table_privilege('audit.turns', 'SELECT')"
    found = await limited.run(lambda conn: tuple(conn.execute(text(read)).one()), reach=AUDIT_VIEWS)
    assert found == (False, True)
