import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from service.store.migrate import stored_version, upgrade
from stack.database import local_url
from stack.errors import StackError
from stack.placement import LONGEST_SOCKET_PATH
from stack.postgres import EmbeddedPostgres
from tests.stack.supervisors import Serve, processes_within, wait_until_none_within


def start_error(directory: Path) -> str:
    """The one line that a start is refused with; nothing may be left running."""
    server = EmbeddedPostgres(directory, durable=False)
    with pytest.raises(StackError) as refused:
        server.start()
    assert processes_within(directory) == []
    line = str(refused.value)
    assert "\n" not in line
    return line


def setting(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def durable_server(cluster_directory: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(cluster_directory) as server:
        yield server


def test_both_urls_reach_the_named_database(postgres_server: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres_server.dsn()) as connection:
        assert connection.info.dbname == "everturn"
        assert connection.info.server_version >= 18_00_00
    engine = sqlalchemy.create_engine(postgres_server.url("postgres"))
    with engine.connect() as sa_connection:
        assert sa_connection.execute(sqlalchemy.text("SELECT current_database()")).scalar() == "postgres"
    engine.dispose()


def test_text_sorts_the_same_on_every_machine(postgres_server: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres_server.dsn()) as connection:
        row = connection.execute(
            "SELECT datlocprovider, datlocale FROM pg_database WHERE datname = 'everturn'"
        ).fetchone()
    assert row == ("b", "C.UTF-8")


@pytest.mark.parametrize("name", ["fsync", "synchronous_commit", "full_page_writes", "data_checksums"])
def test_a_server_that_is_not_for_tests_is_durable(durable_server: EmbeddedPostgres, name: str) -> None:
    assert setting(durable_server, name) == "on"


@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"])
def test_nothing_waits_without_a_limit(postgres_server: EmbeddedPostgres, name: str) -> None:
    assert setting(postgres_server, name) not in {"", "0"}


def test_no_tcp_port_is_opened(postgres_server: EmbeddedPostgres) -> None:
    assert setting(postgres_server, "listen_addresses") == ""
    inodes = {
        link.readlink().name
        for link in Path(f"/proc/{postgres_server.child.pid}/fd").iterdir()
        if link.readlink().name.startswith("socket:")
    }
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    assert inodes
    assert not inodes & listening


def test_nobody_else_enters_the_socket_folder(postgres_server: EmbeddedPostgres) -> None:
    folder = Path(str(psycopg.conninfo.conninfo_to_dict(postgres_server.dsn())["host"]))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_wrong_password_does_not_get_in(postgres_server: EmbeddedPostgres) -> None:
    dsn = psycopg.conninfo.make_conninfo(postgres_server.dsn(), password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn)


def test_rows_outlive_a_restart(cluster_directory: Path) -> None:
    for expected in (1, 2):
        with (
            EmbeddedPostgres(cluster_directory, durable=False) as server,
            psycopg.connect(server.dsn()) as connection,
        ):
            connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (expected,)


def test_an_acknowledged_row_survives_the_servers_death(durable_server: EmbeddedPostgres) -> None:
    with psycopg.connect(durable_server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE acknowledged (n int)")
        connection.execute("INSERT INTO acknowledged VALUES (7)")
        os.kill(durable_server.child.pid, signal.SIGKILL)
    durable_server.stop()
    durable_server.start()
    with psycopg.connect(durable_server.dsn()) as connection:
        assert connection.execute("SELECT n FROM acknowledged").fetchone() == (7,)


def test_a_killed_supervisor_leaves_no_server_and_its_rows_are_there_at_the_next_start(
    cluster_directory: Path, serve: Serve
) -> None:
    served = serve("postgres", cluster_directory)
    engine = sqlalchemy.create_engine(served.url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE acknowledged AS SELECT 7 AS n"))
    engine.dispose()
    served.supervisor.kill()
    wait_until_none_within(cluster_directory, limit_s=5)

    with EmbeddedPostgres(cluster_directory) as server, psycopg.connect(server.dsn()) as after:
        assert after.execute("SELECT n FROM acknowledged").fetchone() == (7,)


def test_a_start_right_after_the_supervisors_death_waits_for_its_server(
    cluster_directory: Path, serve: Serve
) -> None:
    serve("postgres", cluster_directory).supervisor.kill()
    with EmbeddedPostgres(cluster_directory, durable=False) as server:
        assert server.child.exit_status() is None


def test_a_second_supervisor_is_refused_and_told_who_the_first_is(
    cluster_directory: Path, serve: Serve
) -> None:
    served = serve("postgres", cluster_directory)
    with pytest.raises(StackError, match=rf"in use by another running stack \(pid {served.supervisor.pid}\)"):
        EmbeddedPostgres(cluster_directory).start()
    engine = sqlalchemy.create_engine(served.url)
    with engine.connect():
        pass  # the first is not disturbed
    engine.dispose()


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage\n", b"1\n", f"{os.getpid()}\n".encode()],
    ids=["empty", "garbage", "of init", "of ourselves"],
)
def test_a_leftover_pid_file_is_no_obstacle(cluster_directory: Path, content: bytes) -> None:
    (cluster_directory / "data/postmaster.pid").write_bytes(content)
    with EmbeddedPostgres(cluster_directory, durable=False) as server:
        assert setting(server, "server_version_num") >= "180000"


def test_a_server_started_by_hand_on_the_same_data_is_left_alone(
    cluster_directory: Path, serve: Serve
) -> None:
    served = serve("postgres", cluster_directory)
    # Other lock files stand for a server that knows nothing of ours.
    (cluster_directory / "supervisor.lock").unlink()
    (cluster_directory / "server.lock").unlink()
    with pytest.raises(StackError, match=rf"did not start runs on .* \(pid {served.pid}\)"):
        EmbeddedPostgres(cluster_directory).start()
    assert (cluster_directory / "data/postmaster.pid").exists()


def test_data_of_another_major_version_are_refused_untouched(cluster_directory: Path) -> None:
    (cluster_directory / "data/PG_VERSION").write_text("17\n")
    assert "was made by PostgreSQL 17, this is 18" in start_error(cluster_directory)


def test_a_folder_that_is_no_database_is_refused_untouched(folder: Path) -> None:
    photo = folder / "pg/data/photo.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"\xff\xd8")
    assert "is not a PostgreSQL data directory" in start_error(folder / "pg")
    assert photo.read_bytes() == b"\xff\xd8"


def test_a_server_that_cannot_start_says_its_own_last_words_and_where_they_are(
    cluster_directory: Path,
) -> None:
    (cluster_directory / "data/global/pg_control").write_bytes(b"")
    line = start_error(cluster_directory)
    assert "PostgreSQL ended while starting" in line
    assert "pg_control" in line
    assert f"(log: {cluster_directory / 'postgres.log'})" in line


def test_a_lost_password_is_named(cluster_directory: Path) -> None:
    (cluster_directory / "password").unlink()
    assert re.search(r"cannot read .*password: No such file", start_error(cluster_directory))


def test_a_password_of_another_cluster_is_named(cluster_directory: Path) -> None:
    (cluster_directory / "password").write_text("other\n")
    assert "the password beside" in start_error(cluster_directory)


def test_a_directory_too_deep_for_a_socket_still_works(cluster_directory: Path, folder: Path) -> None:
    deep = folder / ("d" * LONGEST_SOCKET_PATH) / "pg"
    deep.parent.mkdir(mode=0o711)
    cluster_directory.rename(deep)
    with EmbeddedPostgres(deep, durable=False) as server:
        assert setting(server, "data_directory") == str(deep / "data")
        sockets = Path(setting(server, "unix_socket_directories"))
        assert (sockets / ".s.PGSQL.5432").is_socket()
    assert not sockets.exists()


def test_a_folder_of_any_name_is_reached_by_every_reader_of_the_url(
    cluster_directory: Path, folder: Path
) -> None:
    odd = cluster_directory.rename(folder / "a b+c%20d")
    with EmbeddedPostgres(odd, durable=False) as server:
        upgrade(server.url())
        respelled = sqlalchemy.make_url(server.url()).render_as_string(hide_password=False)
        assert "a+b" in respelled
        assert stored_version(respelled) is not None
        for url in (server.url(), local_url(odd)):
            with psycopg.connect(url.replace("+psycopg", "", 1)) as connection:
                assert connection.execute("SELECT to_regclass('events')::text").fetchone() == ("events",)


def test_an_interrupted_first_start_is_begun_anew(folder: Path) -> None:
    half = folder / "pg/data.new"
    half.mkdir(parents=True)
    half.parent.chmod(0o711)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder / "pg", durable=False) as server:
        assert setting(server, "fsync") == "off"
    assert not half.exists()
