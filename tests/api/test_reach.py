"""What a request's transactions may see follows from its key, and ends with each transaction."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, Engine, text

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


async def test_an_auditors_reach_is_the_views(limited: Database) -> None:
    read = "SELECT has_table_privilege('events', 'SELECT'), has_table_privilege('audit.turns', 'SELECT')"
    found = await limited.run(lambda conn: tuple(conn.execute(text(read)).one()), reach=AUDIT_VIEWS)
    assert found == (False, True)
