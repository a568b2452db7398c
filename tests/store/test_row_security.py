"""A transaction of the service sees one tenant's rows, whatever its queries forget to ask."""

import pytest
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from service.domain.events import TenantId
from service.domain.limits import Limits
from service.domain.plan import RebuildQueue
from service.store import artifacts, event_store, keys, rebuilds, tenants, turns
from tests.store.histories import ACME, CHAT, KV, NOW, TURN, V13, append, created, published, said

OTHER = TenantId("other")
TABLES = (
    "events",
    "event_contents",
    "turns",
    "artifacts",
    "rebuilds",
    "tenants",
    "tenant_limits",
)


@pytest.fixture
def two_tenants(owner_conn: Connection) -> Connection:
    """With a row of each in every table that has rows of tenants; not yet limited to anybody."""
    for number, tenant in enumerate((ACME, OTHER)):
        keys.create_tenant(owner_conn, tenant)
        tenants.set_limits(owner_conn, tenant, Limits(items=9), by="test", now=NOW)
        scope = keys.Scope.TENANT
        keys.create_key(owner_conn, tenant=tenant, scope=scope, secret=f"row-security {tenant}", now=NOW)
        append(owner_conn, created(), said(f"a secret of {tenant}"), tenant=tenant)
        turns.open_turn(
            owner_conn,
            tenant=tenant,
            turn=TURN,
            conversation=CHAT,
            idempotency_key=None,
            request_hash="h",
            owner="api",
            lease_s=60,
        )
        kv = published(f"{KV[:-1]}{number}", expires_ms=4_000_000_000_000)
        artifacts.record(owner_conn, tenant=tenant, conversation=CHAT, published=kv, now=NOW)
        rebuilds.enqueue(
            owner_conn,
            rebuild=f"rb_{number}",
            tenant=tenant,
            conversation=CHAT,
            turn=TURN,
            attempt=1,
            revision=V13,
            offer=None,
            tokens_total=1,
            queue=RebuildQueue.INTERACTIVE,
        )
    return owner_conn


def act(conn: Connection, role: str, tenant: str = "") -> Connection:
    conn.execute(text(f"SET LOCAL ROLE {role}"))
    conn.execute(text("SELECT set_config('app.tenant', :tenant, true)"), {"tenant": tenant})
    return conn


def seen(conn: Connection, table: str) -> set[str]:
    """A query with no tenant filter."""
    return set(conn.execute(text(f"SELECT tenant_id FROM {table}")).scalars()) & {ACME, OTHER}  # noqa: S608


@pytest.mark.parametrize("table", TABLES)
def test_a_query_without_a_tenant_filter_finds_the_own_rows_alone(
    two_tenants: Connection, table: str
) -> None:
    assert seen(two_tenants, table) == {ACME, OTHER}
    assert seen(act(two_tenants, "everturn_service", ACME), table) == {ACME}


@pytest.mark.parametrize("table", TABLES)
def test_without_a_tenant_nothing_is_found(two_tenants: Connection, table: str) -> None:
    assert seen(act(two_tenants, "everturn_service"), table) == set()


@pytest.mark.parametrize("table", [*TABLES, "api_keys"])
def test_the_fleets_role_sees_all_tenants(two_tenants: Connection, table: str) -> None:
    assert seen(act(two_tenants, "everturn_fleet", ACME), table) == {ACME, OTHER}


def test_a_load_that_named_another_tenant_finds_no_conversation(two_tenants: Connection) -> None:
    act(two_tenants, "everturn_service", ACME)
    assert event_store.load_conversation(two_tenants, ACME, CHAT).exists
    assert not event_store.load_conversation(two_tenants, OTHER, CHAT).exists


def test_nothing_can_be_written_for_another_tenant(two_tenants: Connection) -> None:
    act(two_tenants, "everturn_service", ACME)
    with pytest.raises(DBAPIError) as caught:
        append(two_tenants, created(), tenant=OTHER, stream="conv_9")
    assert isinstance(caught.value.orig, InsufficientPrivilege)


def test_an_update_without_a_filter_changes_the_own_rows_alone(two_tenants: Connection) -> None:
    act(two_tenants, "everturn_service", ACME)
    changed = two_tenants.execute(text("UPDATE turns SET owner = 'mine'")).rowcount
    assert changed == 1


@pytest.mark.parametrize("what", ["api_keys", "audit.turns", "audit.refusals", "audit.keys"])
def test_a_tenants_transaction_reads_neither_keys_nor_audit(two_tenants: Connection, what: str) -> None:
    act(two_tenants, "everturn_service", ACME)
    with pytest.raises(DBAPIError) as caught:
        two_tenants.execute(text(f"SELECT * FROM {what}"))  # noqa: S608
    assert isinstance(caught.value.orig, InsufficientPrivilege)


def test_every_table_with_rows_of_tenants_is_held_to_it_even_for_its_owner(owner_conn: Connection) -> None:
    open_tables = text("""
        SELECT relname FROM pg_class
        WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
          AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'tenant_id')
          AND NOT (relrowsecurity AND relforcerowsecurity)
    """)
    assert owner_conn.execute(open_tables).scalars().all() == []


def test_whatever_the_service_may_read_of_tenants_is_that_of_its_own(owner_conn: Connection) -> None:
    """Of every table, those to come as well: a policy that lets the service see more, or is for everybody, is found."""
    policies = text("""
        SELECT tablename, qual FROM pg_policies
        WHERE schemaname = 'public' AND roles && ARRAY['everturn_service', 'public']::name[]
    """)
    found = {table: condition for table, condition in owner_conn.execute(policies)}  # noqa: C416 rows are no pairs to mypy
    assert set(TABLES) <= set(found)
    assert set(found.values()) == {
        "(tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text))"
    }


def test_engines_are_told_how_busy_they_are_by_all_tenants(two_tenants: Connection) -> None:
    """Counted over everybody, and nothing else of others is told."""
    act(two_tenants, "everturn_service", ACME)
    columns = two_tenants.execute(text("SELECT * FROM engine_load")).keys()
    assert list(columns) == ["engine", "attempts"]
