"""A database is brought up to date by whoever comes first, and whatever stands in the way is said in one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import psycopg
import pytest
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import make_url

from service.domain.errors import EverturnError, InvalidInput, Unavailable
from service.store import migrate
from service.store.migrate import LOCK_KEY, upgrade
from stack.postgres import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[2]
MIGRATIONS = ScriptDirectory.from_config(Config(REPOSITORY / "migrations/alembic.ini"))


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


def start_upgrade(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "service.store.migrate", *arguments],
        cwd=REPOSITORY,
        env={"PATH": os.defpath} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tables(url: str) -> set[str]:
    with psycopg.connect(libpq(url)) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


@pytest.fixture
def login(postgres_server: EmbeddedPostgres, empty_database: str) -> Iterator[str]:
    """The URL of the empty database for a login that may do nothing."""
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE powerless LOGIN PASSWORD 'p'")
        yield (
            make_url(empty_database)
            .set(username="powerless", password="p")
            .render_as_string(hide_password=False)
        )
        connection.execute("DROP ROLE powerless")


def test_two_processes_that_start_at_once_both_find_the_schema(empty_database: str) -> None:
    started = [start_upgrade(empty_database) for _ in range(2)]
    outcomes = [(*process.communicate(timeout=60), process.returncode) for process in started]
    assert outcomes == [("", "", 0)] * 2
    assert {"events", "everturn_schema"} <= tables(empty_database)


def test_a_second_process_waits_for_the_first(empty_database: str) -> None:
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = %s::oid"
    with psycopg.connect(libpq(empty_database), autocommit=True) as first:
        first.execute("SELECT pg_advisory_lock(%s)", [LOCK_KEY])
        [oid] = (
            first.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone() or ()
        )
        second = start_upgrade(EVERTURN_DATABASE_URL=empty_database)
        deadline = monotonic() + 30
        while first.execute(waits, [oid]).fetchone() != (1,):
            assert monotonic() < deadline
            sleep(0.05)
        assert tables(empty_database) == set()
    assert second.communicate(timeout=60) == ("", "")
    assert "events" in tables(empty_database)


def test_upgrading_again_changes_nothing(database: str) -> None:
    before = tables(database)
    upgrade(database)
    assert tables(database) == before


def test_a_login_with_the_services_rights_alone_may_start_on_a_finished_schema(
    postgres_server: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE only_service LOGIN PASSWORD 'p' IN ROLE everturn_service")
        upgrade(
            make_url(database)
            .set(username="only_service", password="p")
            .render_as_string(hide_password=False)
        )
        connection.execute("DROP ROLE only_service")


def test_any_spelling_of_the_url_will_do(empty_database: str) -> None:
    upgrade(libpq(empty_database))
    assert "events" in tables(empty_database)


def test_a_schema_of_a_newer_version_is_left_as_it_is(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(libpq(database)) as connection:
        connection.execute("UPDATE everturn_schema SET version_num = '9999'")
    upgrade(database)
    with psycopg.connect(libpq(database)) as connection:
        assert connection.execute("SELECT version_num FROM everturn_schema").fetchone() == ("9999",)
    assert "newer version" in caplog.text


def test_a_failing_migration_leaves_nothing_half_done(empty_database: str) -> None:
    with psycopg.connect(libpq(empty_database)) as connection:
        connection.execute("CREATE TABLE rebuilds (mine text)")
    with pytest.raises(Unavailable, match='changed nothing: relation "rebuilds" already exists') as caught:
        upgrade(empty_database)
    one_line(caught.value)
    assert tables(empty_database) == {"rebuilds"}


def test_a_server_that_is_too_old_is_refused_before_anything_is_written(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "OLDEST_SERVER", 99_00_00)
    with pytest.raises(InvalidInput, match=r"is PostgreSQL 18\.\d+; Everturn needs 99 or newer") as caught:
        upgrade(empty_database)
    one_line(caught.value)
    assert tables(empty_database) == set()


def test_a_login_that_may_not_make_the_schema_is_told_so(login: str) -> None:
    with pytest.raises(InvalidInput, match="login may not make the schema") as caught:
        upgrade(login)
    one_line(caught.value)
    assert tables(login) == set()


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("postgresql://u:hidden@127.0.0.1:1/x", r"No database at postgresql://u:\*\*\*@127\.0\.0\.1:1/x"),
        ("postgresql://u:hidden@nowhere.invalid/x", "No database at .*nowhere.invalid"),
    ],
)
def test_an_unreachable_server_is_named_without_the_password(url: str, cause: str) -> None:
    with pytest.raises(Unavailable, match=cause) as caught:
        upgrade(url)
    one_line(caught.value)


def test_a_database_that_is_not_there_is_named(postgres_server: EmbeddedPostgres) -> None:
    with pytest.raises(Unavailable, match='"nowhere" does not exist') as caught:
        upgrade(postgres_server.url("nowhere"))
    one_line(caught.value)


@pytest.mark.parametrize("url", ["", "hidden", "mysql://u:hidden@h/x", "postgresql://u:hidden@h/x?nope=1"])
def test_what_is_no_postgres_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidInput, match="database URL") as caught:
        upgrade(url)
    one_line(caught.value)


def test_the_command_line_reports_one_line_and_fails() -> None:
    process = start_upgrade("postgresql://u:hidden@127.0.0.1:1/x")
    said, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == ""
    assert error.startswith("error: No database at ")
    assert error.count("\n") == 1


def one_line(error: EverturnError) -> None:
    assert "\n" not in str(error)
    assert "hidden" not in str(error)


@pytest.mark.parametrize("migration", [*MIGRATIONS.walk_revisions()], ids=lambda script: script.revision)
def test_none_is_undone_and_the_way_back_is_named(migration: Script) -> None:
    with pytest.raises(NotImplementedError, match="go back by running the previous version on this schema"):
        migration.module.downgrade()
