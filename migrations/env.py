"""Migrates as one owner, one process at a time, each migration in a transaction, and never waits without end."""

import os
from pathlib import Path

from alembic import context
from sqlalchemy import Connection, text

from service.store.connection import make_engine
from service.store.migrate import LOCK_KEY, VERSION_TABLE
from service.store.rollout_tables import rollouts
from service.store.tenant_tables import tenants

OWNER = "SET ROLE everturn_owner"
# One, which every file of tables adds to.
[METADATA] = {tenants.metadata, rollouts.metadata}

ROLES = Path(__file__).with_name("roles.sql")

# A migration that cannot get its lock soon would have every query queue up behind it. The service's own give up after 5 s:
# those that wait for what this one has locked already must not, while it waits for the next.
LIMITS = ("SET lock_timeout = '2s'", "SET statement_timeout = '60s'")
WAIT_FOR_ANOTHER = ("SET lock_timeout = '120s'", "SET statement_timeout = '130s'")


def migrate(connection: Connection) -> None:
    for statement in (*WAIT_FOR_ANOTHER, f"SELECT pg_advisory_lock({LOCK_KEY})", *LIMITS):
        connection.execute(text(statement))
    connection.execute(text(ROLES.read_text()))
    connection.execute(text(OWNER))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table=VERSION_TABLE,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def print_sql() -> None:
    context.configure(
        dialect_name="postgresql",
        target_metadata=METADATA,
        version_table=VERSION_TABLE,
        transaction_per_migration=True,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        for statement in (*LIMITS, ROLES.read_text(), OWNER):
            context.execute(statement)
        context.run_migrations()


def database_url() -> str:
    url: str | None = context.config.attributes.get("url") or os.environ.get("EVERTURN_DATABASE_URL")
    if url is None:
        raise SystemExit("EVERTURN_DATABASE_URL is not set: it names the database to migrate.")
    return url


if context.is_offline_mode():
    print_sql()
else:
    engine = make_engine(database_url(), application_name="everturn-migrate", pool_size=1, role=None)
    try:
        with engine.connect() as connected:
            migrate(connected)
    finally:
        engine.dispose()
