"""Engines for Postgres: every wait has an end, and the service's role is taken at connect."""

from typing import Any

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from service.domain.errors import InvalidInput

SERVICE_ROLE = "everturn_service"
"""Made by the migrations: may add events and read them, never owns a table, and sees the rows of one tenant: `app.tenant`."""

FLEET_ROLE = "everturn_fleet"
"""The service's rights over all tenants: for workers, operators, and finding out whose a key is."""

AUDITOR_ROLE = "everturn_auditor"
"""Reads the audit views, and nothing else."""

CONNECT_TIMEOUT_S = 5
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
    return create_engine(parse_url(url), **_options(parse_url(url), application_name, pool_size, role))


def make_async_engine(
    url: str, *, application_name: str, pool_size: int = 5, role: str | None = SERVICE_ROLE
) -> AsyncEngine:
    """As `make_engine`; its connections call the store's functions through `run_sync`."""
    return create_async_engine(parse_url(url), **_options(parse_url(url), application_name, pool_size, role))


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


def startup_options(url: URL, role: str | None) -> str:
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
    given = url.query.get("options", "")
    own = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return " ".join([given if isinstance(given, str) else " ".join(given), own]).strip()


def _options(url: URL, application_name: str, pool_size: int, role: str | None) -> dict[str, Any]:
    return {
        # What people said must not end up in logs, where no erasure finds it.
        "hide_parameters": True,
        "pool_size": pool_size,
        "max_overflow": pool_size,
        "pool_timeout": POOL_TIMEOUT_S,
        "pool_pre_ping": True,
        "connect_args": {
            "application_name": application_name,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": startup_options(url, role),
        },
    }
