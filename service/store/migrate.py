"""Brings a database to this version's schema; as many processes as like may ask for it at once."""

import argparse
import logging
import os
import sys
from importlib.resources import files
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from psycopg.conninfo import make_conninfo
from psycopg.errors import DeadlockDetected, InsufficientPrivilege, LockNotAvailable, QueryCanceled
from psycopg.rows import TupleRow
from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError, DBAPIError

from service.domain.errors import EverturnError, Internal, InvalidInput, Unavailable
from service.store.connection import CONNECT_TIMEOUT_S, parse_url

OLDEST_SERVER = 18_00_00

VERSION_TABLE = "everturn_schema"
"""Not alembic's own name, which another program in the same database may use."""

LOCK_KEY = 0x45564552_5455524E
"""'EVERTURN': the advisory lock that is held while one process migrates."""

DEADLOCK_TRIES = 5
"""Those who write meanwhile take locks in an order of their own; a migration that lost to them has changed nothing."""

logger = logging.getLogger(__name__)


def upgrade(url: str) -> None:
    """Each migration is one transaction, so nothing is left half done.

    Where there is nothing to do, the service's own rights suffice. A schema newer than this version is left as it is: each version's schema carries the version before it.

    Raises:
        InvalidInput: not a Postgres URL, a server that is too old, or a login that may not make the schema.
        Unavailable: no server answers, or a lock was held for too long.
    """
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["url"] = url
    if stored_version(url) == ScriptDirectory.from_config(config).get_current_head():
        return
    for left in reversed(range(DEADLOCK_TRIES)):
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            if not isinstance(error.__cause__, ResolutionError):
                raise Internal(f"The migrations cannot be run: {error}.") from error
            logger.warning("the database was migrated by a newer version, and is left as it is: %s", error)
        except DBAPIError as error:
            if left and isinstance(error.orig, DeadlockDetected):
                continue
            raise _explained(error) from error
        return


def stored_version(url: str) -> str | None:
    """None before the first migration, and for a login that may not read it.

    Raises:
        InvalidInput: not a Postgres URL, or a server that is too old.
        Unavailable: no server answers.
    """
    parsed = parse_url(url)
    shown = parsed.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
    try:
        with psycopg.connect(_conninfo(parsed), connect_timeout=CONNECT_TIMEOUT_S) as connection:
            _check_version(connection.info.server_version, shown)
            return _read_version(connection)
    except (psycopg.ProgrammingError, ArgumentError) as error:
        raise InvalidInput(f"The database URL cannot be used: {_one_line(error)}.", "database_url") from error
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"No database at {shown}: {_one_line(error)}. Start it, or correct EVERTURN_DATABASE_URL."
        ) from error


def _conninfo(url: URL) -> str:
    """As SQLAlchemy reads the URL, since libpq reads some otherwise: to it a `+` is no space.

    Raises:
        psycopg.ProgrammingError: with an option that there is not.
    """
    _, given = url.get_dialect()().create_connect_args(url)
    # Of one that is given twice libpq takes the last.
    options: dict[str, Any] = {n: v if isinstance(v, str | int) else v[-1] for n, v in given.items()}
    return make_conninfo(**options)


def _check_version(version: int, shown: str) -> None:
    if version < OLDEST_SERVER:
        raise InvalidInput(
            f"The server at {shown} is PostgreSQL {version // 10_000}.{version % 10_000}; Everturn needs "
            f"{OLDEST_SERVER // 10_000} or newer. Upgrade it, or point EVERTURN_DATABASE_URL at another.",
            "database_url",
        )


def _read_version(connection: psycopg.Connection[TupleRow]) -> str | None:
    table = f"public.{VERSION_TABLE}"
    readable = "SELECT has_table_privilege(to_regclass(%s), 'SELECT')"
    if connection.execute(readable, [table]).fetchone() != (True,):
        return None
    row = connection.execute(f"SELECT version_num FROM {table}").fetchone()  # noqa: S608 a constant
    return row[0] if row else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m service.store.migrate", description=__doc__)
    parser.add_argument("url", nargs="?", default=os.environ.get("EVERTURN_DATABASE_URL"))
    url = parser.parse_args().url
    if url is None:
        parser.error("give a database URL, or set EVERTURN_DATABASE_URL")
    try:
        upgrade(url)
    except EverturnError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 what a command line is for
        return 1
    return 0


def _explained(error: DBAPIError) -> EverturnError:
    cause = _one_line(error.orig)
    match error.orig:
        case InsufficientPrivilege():
            return InvalidInput(
                f"The database login may not make the schema: {cause}. Migrate once as a login that may create roles.",
                "database_url",
            )
        case LockNotAvailable() | QueryCanceled():
            return Unavailable(f"The migration waited too long and changed nothing: {cause}. Run it again.")
        case _:
            return Unavailable(f"The migration failed and changed nothing: {cause}.")


def _one_line(error: BaseException | None) -> str:
    """The first line: what follows it is hints and further addresses that were tried."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
