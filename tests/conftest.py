"""Real servers for the whole session: nothing in these tests stands in for PostgreSQL or the broker."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey

pytest_plugins = ["tests.engines.real"]


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """Unlike pytest's own temporary folders, one that a server account other than root can enter."""
    folder = Path(tempfile.mkdtemp(prefix="everturn-tests-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(server_folder / "postgres", durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server(server_folder: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(server_folder / "valkey") as server:
        yield server


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The SQLAlchemy URL of a new database without tables, dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield postgres_server.url(name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
