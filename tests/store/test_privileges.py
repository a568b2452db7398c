"""The log only grows: for the service by its rights, for everybody else by triggers that nothing switches off."""

import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from service.store.connection import make_engine
from tests.store.histories import append, created, said

CHANGES = [
    "UPDATE events SET payload = '{}'",
    "UPDATE events SET payload = '{}' WHERE false",
    "DELETE FROM events",
    "TRUNCATE events",
    "INSERT INTO events OVERRIDING SYSTEM VALUE TABLE events ON CONFLICT (position) DO UPDATE SET payload = '{}'",
    "MERGE INTO events USING (VALUES (1)) AS one (n) ON true WHEN MATCHED THEN DELETE",
    "UPDATE event_contents SET content = 'x'",
    "UPDATE event_contents SET salt = salt WHERE false",
    "TRUNCATE event_contents",
    "DELETE FROM revisions",
    "UPDATE revisions SET label = 'x'",
    "TRUNCATE revisions CASCADE",
]


def cause_of(conn: Connection, statement: str) -> type[BaseException | None]:
    with pytest.raises(DBAPIError) as caught:
        conn.execute(text(statement))
    conn.rollback()
    return type(caught.value.orig)


@pytest.mark.parametrize("change", CHANGES)
def test_the_service_may_not_change_history(conn: Connection, change: str) -> None:
    append(conn, created())
    assert cause_of(conn, change) is InsufficientPrivilege


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("replication_role", ["origin", "replica"])
def test_not_even_a_superuser_changes_history(
    owner_conn: Connection, change: str, replication_role: str
) -> None:
    owner_conn.execute(text(f"SET LOCAL session_replication_role = {replication_role}"))
    append(owner_conn, created())
    assert cause_of(owner_conn, change) is RestrictViolation


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE events DISABLE TRIGGER append_only",
        "DROP TABLE events",
        "INSERT INTO events (txid) VALUES ('1')",
        "INSERT INTO events (position) OVERRIDING SYSTEM VALUE VALUES (9)",
        "ALTER TABLE events ADD COLUMN x text",
        "DROP TRIGGER append_only ON events",
        "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "SET session_replication_role = replica",
        "CREATE TABLE mine (x int)",
        "CREATE SCHEMA mine",
        "UPDATE everturn_schema SET version_num = 'x'",
        "UPDATE tenants SET tenant_id = 'another'",
        "UPDATE tenants SET created_at = now()",
        "DELETE FROM api_keys",
        "DELETE FROM turns",
    ],
)
def test_the_service_owns_nothing(conn: Connection, statement: str) -> None:
    assert cause_of(conn, statement) is InsufficientPrivilege


def test_only_what_may_see_all_tenants_changes_the_policy_of_one(conn: Connection) -> None:
    conn.execute(text("UPDATE tenants SET on_upgrade = 'stay'"))
    conn.execute(text("SET LOCAL ROLE everturn_service"))
    assert cause_of(conn, "UPDATE tenants SET on_upgrade = 'stay'") is InsufficientPrivilege


def test_the_service_falls_back_to_its_own_role_and_limits_on_reset(conn: Connection) -> None:
    conn.execute(text("RESET ROLE"))
    assert conn.execute(text("SELECT current_user")).scalar_one() == "everturn_fleet"
    conn.execute(text("RESET ALL"))
    assert conn.execute(text("SHOW statement_timeout")).scalar_one() == "15s"


def test_the_service_appends_and_reads(conn: Connection) -> None:
    assert append(conn, created(), said("hi")) == 2


def test_the_auditor_reads_every_audit_view_and_nothing_else(
    shared_database: str, owner_conn: Connection
) -> None:
    relations = text(
        "SELECT schemaname || '.' || quote_ident(name) FROM ("
        " SELECT schemaname, tablename AS name FROM pg_tables UNION SELECT schemaname, viewname FROM pg_views) AS r"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    names = set(owner_conn.execute(relations).scalars())
    auditor = make_engine(shared_database, application_name="auditor", role="everturn_auditor")
    with auditor.connect() as conn:
        for name in names:
            if name.startswith("audit."):
                conn.execute(text(f"TABLE {name}"))
            else:
                assert cause_of(conn, f"TABLE {name}") is InsufficientPrivilege
        assert cause_of(conn, "CREATE TABLE mine (x int)") is InsufficientPrivilege
        assert cause_of(conn, "CREATE VIEW audit.mine AS SELECT 1") is InsufficientPrivilege
    auditor.dispose()
    assert {"audit.turn_provenance", "audit.cross_revision_hits", "audit.refusals"} <= names
    assert {"public.events", "public.api_keys"} <= names


def test_the_roles_cannot_log_in(owner_conn: Connection) -> None:
    query = text("SELECT rolname, rolcanlogin, rolsuper FROM pg_roles WHERE rolname LIKE 'everturn%'")
    found = {name: (login, superuser) for name, login, superuser in owner_conn.execute(query)}
    names = {"everturn_owner", "everturn_service", "everturn_fleet", "everturn_auditor"}
    assert {name: found[name] for name in names} == dict.fromkeys(names, (False, False))
