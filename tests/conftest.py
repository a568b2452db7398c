"""Real servers for the whole session, and databases on them: nothing in these tests stands in for PostgreSQL or the broker.

A migrated database is copied from one template in a few hundredths of a second.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from sqlalchemy import Connection, Engine
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey

ROOT = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")  # noqa: S108 by way of `mkdtemp`
ROOM_BYTES = 4 << 30

# How long an example takes says how busy the machine is, and no more.
settings.register_profile("everturn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everturn")

pytest_plugins = ["tests.engines.real", "tests.workers.kv_connector.s3", "tests.workers.kv_connector.stores"]


class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
    """One process has all tests that need an engine, which they share; the tests of any other file stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(nodeid.partition("::")[0])
        return "engine" if "pytest.mark.engine" in (ROOT / file).read_text() else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByEngine:
    return ByEngine(config, log)


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """Unlike pytest's own temporary folders, one that a server account other than root can enter."""
    with folder_for_servers() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """In memory where there is room: a disk that is told of every file that goes may take a minute for a database that is dropped."""
    with (
        folder_for_servers(MEMORY if has_room(MEMORY) else None) as folder,
        EmbeddedPostgres(folder / "postgres", durable=False) as server,
    ):
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


@pytest.fixture(scope="session")
def template_database(postgres_server: EmbeddedPostgres) -> str:
    """Name of a migrated database that nobody is connected to."""
    name = f"template_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    upgrade(postgres_server.url(name))
    return name


@pytest.fixture
def database(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """The SQLAlchemy URL, with a superuser's rights, of a migrated database of this test's own."""
    with copied(postgres_server, template_database) as url:
        yield url


@pytest.fixture(scope="session")
def shared_database(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """For tests that roll back all they do."""
    with copied(postgres_server, template_database) as url:
        yield url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """As the service connects: under its own role."""
    made = make_engine(database, application_name="tests", pool_size=25)
    yield made
    made.dispose()


@pytest.fixture
def owner_engine(database: str) -> Iterator[Engine]:
    """A superuser: what no part of the service ever is."""
    made = make_engine(database, application_name="tests-owner", role=None)
    yield made
    made.dispose()


@pytest.fixture
def conn(shared_database: str) -> Iterator[Connection]:
    """One transaction of the service, rolled back after the test."""
    yield from connected(make_engine(shared_database, application_name="tests", pool_size=1))


@pytest.fixture
def owner_conn(shared_database: str) -> Iterator[Connection]:
    """One transaction of a superuser, rolled back after the test."""
    yield from connected(make_engine(shared_database, application_name="tests", pool_size=1, role=None))


@contextmanager
def folder_for_servers(parent: Path | None = None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everturn-tests-", dir=parent))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def has_room(folder: Path) -> bool:
    """And programs may be run from there."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize > ROOM_BYTES and not system.f_flag & os.ST_NOEXEC


@contextmanager
def copied(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
        yield server.url(name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def connected(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        # A test may be kept waiting for a core for longer than a client of the service may be silent.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection
    engine.dispose()
