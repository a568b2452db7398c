"""Where a command finds the database: as given, else that of the stack on this machine."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError, ProgrammingError

from service.store.connection import FLEET_ROLE, make_engine
from stack.errors import StackError
from stack.passwords import read_password
from stack.placement import place
from stack.postgres import url_of

SOCKET_LINE = 4
"""Of postmaster.pid, counted from 0."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database-url",
        default=os.environ.get("EVERTURN_DATABASE_URL"),
        metavar="URL",
        help="default: EVERTURN_DATABASE_URL, or the database of the stack on this machine",
    )


@contextmanager
def connected(
    given: argparse.Namespace, *, snapshot: bool = False, role: str = FLEET_ROLE
) -> Iterator[Connection]:
    """One transaction under the service's role, or another's; with `snapshot`, read-only and as of one moment.

    Raises:
        StackError: none is given and no stack runs here, or it does not answer as it should.
    """
    isolation = "REPEATABLE READ" if snapshot else "READ COMMITTED"
    with engine(given, role=role) as made, made.connect() as conn:
        conn.execution_options(isolation_level=isolation, postgresql_readonly=snapshot)
        with conn.begin():
            yield conn


@contextmanager
def engine(given: argparse.Namespace, *, role: str = FLEET_ROLE) -> Iterator[Engine]:
    """For as many transactions as a command takes, each of one connection.

    Raises:
        StackError: as `connected`.
    """
    url = given.database_url or local_url(given.data / "postgres")
    made = make_engine(url, application_name="everturn-cli", pool_size=1, role=role)
    try:
        yield made
    except OperationalError as error:
        raise StackError(
            f"the database does not answer: {one_line(error.orig)}; start it, or give another --database-url"
        ) from error
    except ProgrammingError as error:
        raise StackError(
            f"the database is not as this version needs it: {one_line(error.orig)}; start the service once, it migrates"
        ) from error
    finally:
        made.dispose()


def one_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]


def local_url(directory: Path) -> str:
    """Raises: StackError: no server of ours runs there."""
    missing = StackError("no database runs on this machine: start one with `make up`, or give --database-url")
    if not directory.exists():
        raise missing
    placement = place(directory)
    try:
        socket = (placement.data / "postmaster.pid").read_text().splitlines()[SOCKET_LINE]
    except (OSError, IndexError) as error:
        raise missing from error
    return url_of(socket, read_password(placement), "everturn")
