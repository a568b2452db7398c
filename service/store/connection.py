"""Engines for Postgres: every wait has an end, and the service's role is taken at connect."""

from functools import lru_cache
from select import POLLIN, poll
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from service.domain.errors import InvalidInput
from service.store.hot_statement import HotStatement

SERVICE_ROLE = "everturn_service"
"""Made by the migrations: may add events and read them, never owns a table, and sees the rows of one tenant: `app.tenant`."""

FLEET_ROLE = "everturn_fleet"
"""The service's rights over all tenants: for workers, operators, and finding out whose a key is."""

AUDITOR_ROLE = "everturn_auditor"
"""Reads the audit views, and nothing else."""

BEGIN_WITH = "begin_with"
"""Option of a connection: statements, without parameters, that every transaction on it begins with."""

ALONE = "alone"
"""Option of a connection: each statement on it is a transaction by itself, and one message."""

CONNECT_TIMEOUT_S = 5
HOST_SILENT_S = 10
"""After so long without a word, a host is asked whether it is there."""
HOST_GONE_S = 20
"""A host that says nothing for so long about what it was sent is gone, and so is the connection."""
PROBES = 2
STATEMENT_TIMEOUT_S = 15
LOCK_TIMEOUT_S = 5
IDLE_IN_TRANSACTION_TIMEOUT_S = 10
POOL_TIMEOUT_S = 10


def make_engine(
    url: str, *, application_name: str, pool_size: int = 5, role: str | None = FLEET_ROLE
) -> Engine:
    """For what is done for all tenants. `role` None keeps the login's own rights, as migrations and tests need.

    Raises:
        InvalidInput: not the address of a Postgres database.
    """
    engine = create_engine(parse_url(url), **_options(parse_url(url), application_name, pool_size, role))
    _check_at_checkout(engine)
    _begin_in_one_message(engine)
    return engine


def make_async_engine(
    url: str,
    *,
    application_name: str,
    pool_size: int = 10,
    role: str | None = SERVICE_ROLE,
    read_only: bool = False,
) -> AsyncEngine:
    """As `make_engine`; its connections, never more than `pool_size`, call the store's functions through `run_sync`."""
    options = _options(parse_url(url), application_name, pool_size, role, read_only=read_only)
    # One that is opened for a burst has its statements planned anew, which takes more than what it is opened for: none is
    # thrown away. The one used last is used next, since it has them.
    kept = {"max_overflow": 0, "pool_use_lifo": True}
    engine = create_async_engine(parse_url(url), **options | kept)
    _check_at_checkout(engine.sync_engine)
    _begin_in_one_message(engine.sync_engine)
    return engine


def parse_url(text: str) -> URL:
    """Any spelling of a Postgres URL, for the one driver that we use.

    Raises:
        InvalidInput: without the text, which may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InvalidInput(
            "The database URL cannot be read; write postgresql://user:password@host:5432/database.",
            "database_url",
        ) from error
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"The database URL is for '{url.get_backend_name()}'; Everturn needs PostgreSQL 18 or newer: "
            "postgresql://user:password@host:5432/database.",
            "database_url",
        )
    return url.set(drivername="postgresql+psycopg")


def startup_options(url: URL, role: str | None, *, read_only: bool = False) -> str:
    """As libpq's `options`: set by the server before the first statement, and what RESET returns to."""
    settings = {
        "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
        "lock_timeout": f"{LOCK_TIMEOUT_S}s",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_TIMEOUT_S}s",
        "timezone": "UTC",
        "default_transaction_isolation": r"read\ committed",
    }
    if role is not None:
        settings["role"] = role
    if read_only:
        settings["default_transaction_read_only"] = "on"
    given = url.query.get("options", "")
    own = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return " ".join([given if isinstance(given, str) else " ".join(given), own]).strip()


def _options(
    url: URL, application_name: str, pool_size: int, role: str | None, *, read_only: bool = False
) -> dict[str, Any]:
    return {
        # What people said must not end up in logs, where no erasure finds it.
        "hide_parameters": True,
        "pool_size": pool_size,
        "max_overflow": pool_size,
        "pool_timeout": POOL_TIMEOUT_S,
        "connect_args": {
            "application_name": application_name,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": HOST_SILENT_S,
            "keepalives_interval": (HOST_GONE_S - HOST_SILENT_S) // PROBES,
            "keepalives_count": PROBES,
            "tcp_user_timeout": HOST_GONE_S * 1000,
            "options": startup_options(url, role, read_only=read_only),
            # The driver would begin each transaction in a round trip of its own: see BEGIN_WITH.
            "autocommit": True,
        },
    }


def _check_at_checkout(engine: Engine) -> None:
    """In place of a ping, which would be a round trip for every transaction.

    A server that has closed a connection has said so, and its word waits in the socket; only then is it asked whether
    it still serves. One that vanished without a word is found by the first statement, which fails, as a ping would.
    """

    def check(connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
        if not _has_news(entry.driver_connection):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkout", check)


def _begin_in_one_message(engine: Engine) -> None:
    """BEGIN and what holds for the transaction are one round trip. A level of isolation that was asked for is the driver's to begin."""

    def begin(conn: Connection) -> None:
        options, driver = conn.get_execution_options(), conn.connection.dbapi_connection
        if options.get(ALONE):
            return
        ours = options.get("isolation_level") is None and driver is not None and driver.autocommit
        if statements := [*(["BEGIN"] if ours else []), *options.get(BEGIN_WITH, ())]:
            _first("; ".join(statements)).begin(conn)

    event.listen(engine, "begin", begin)


@lru_cache(maxsize=1024)
def _first(statements: str) -> HotStatement:
    return HotStatement(statements)


def _has_news(connection: Any) -> bool:
    if connection.closed:
        return True
    waiting = poll()
    waiting.register(connection.fileno(), POLLIN)
    return bool(waiting.poll(0))
