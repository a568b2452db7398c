import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from stack.errors import StackError
from stack.valkey import EmbeddedValkey
from tests.stack.supervisors import Serve, processes_within, wait_until_none_within

WRITTEN_MS = 20_000


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(folder / "valkey") as started:
        yield started


def ring(url: str, queue: str) -> None:
    with Celery(broker=url) as app:
        app.send_task("doorbell", queue=queue, retry=False)


def client(server: EmbeddedValkey, *, number: int = 0, password: str | None = None) -> Redis:
    known, _, address = server.url().removeprefix("redis+socket://:").partition("@")
    path = unquote(address.partition("?")[0])
    return Redis(unix_socket_path=path, password=password or known, db=number, retry=Retry(NoBackoff(), 0))


def waiting(server: EmbeddedValkey, queue: str, *, number: int = 0) -> int:
    with client(server, number=number) as connection:
        return int(str(connection.llen(queue)))


def test_celery_takes_the_url_as_it_is(valkey_server: EmbeddedValkey) -> None:
    ring(valkey_server.url(), "taken")
    assert waiting(valkey_server, "taken") == 1


def test_a_folder_of_any_name_is_reached(folder: Path) -> None:
    with EmbeddedValkey(folder / "a b+c%20d") as server:
        ring(server.url(), "taken")
        assert waiting(server, "taken") == 1


def test_numbered_databases_are_separate(valkey_server: EmbeddedValkey) -> None:
    ring(valkey_server.url(0), "separate")
    ring(valkey_server.url(5), "separate")
    assert waiting(valkey_server, "separate", number=5) == 1
    assert waiting(valkey_server, "separate", number=3) == 0


def test_a_wrong_password_does_not_get_in(valkey_server: EmbeddedValkey) -> None:
    with (
        client(valkey_server, password="wrong") as connection,
        pytest.raises(AuthenticationError, match="invalid username-password pair"),
    ):
        connection.ping()


def test_the_password_is_in_no_list_of_processes(valkey_server: EmbeddedValkey) -> None:
    password = valkey_server.url().partition("://:")[2].partition("@")[0]
    process = Path(f"/proc/{valkey_server.child.pid}")
    assert password.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


def test_nobody_else_enters_the_socket_folder(valkey_server: EmbeddedValkey) -> None:
    socket = Path(valkey_server.url().rpartition("@")[2].partition("?")[0])
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


def test_a_message_and_the_url_outlive_the_servers_death(server: EmbeddedValkey) -> None:
    url = server.url()
    ring(url, "kept")
    with client(server) as connection:
        # Where the disk is busy with the second before, what is said now is written up to two seconds later.
        connection.set("mark", "behind it")
        connection.waitaof(1, 0, WRITTEN_MS)
    os.kill(server.child.pid, signal.SIGKILL)
    server.stop()
    server.start()
    assert server.url() == url
    assert waiting(server, "kept") == 1


def test_a_killed_supervisor_leaves_no_server(folder: Path, serve: Serve) -> None:
    served = serve("valkey", folder / "valkey")
    assert processes_within(folder) == [served.pid]
    served.supervisor.kill()
    wait_until_none_within(folder, limit_s=5)


def test_a_second_supervisor_is_refused(server: EmbeddedValkey) -> None:
    with pytest.raises(StackError, match=rf"in use by another running stack \(pid {os.getpid()}\)"):
        EmbeddedValkey(server.directory).start()
    assert server.child.exit_status() is None


def test_a_file_in_the_place_of_the_data_is_named(folder: Path) -> None:
    (folder / "valkey").mkdir()
    (folder / "valkey/data").write_text("not a folder")
    os.chown(folder / "valkey/data", os.geteuid(), -1)
    with pytest.raises(StackError, match="is not a Valkey data directory: move it away"):
        EmbeddedValkey(folder / "valkey").start()


def test_a_server_that_cannot_read_its_data_says_its_last_words(folder: Path) -> None:
    directory = folder / "valkey"
    with EmbeddedValkey(directory) as server:
        ring(server.url(), "kept")
    (base,) = (directory / "data/appendonlydir").glob("*.base.rdb")
    base.write_bytes(b"garbage")
    with pytest.raises(
        StackError, match=r"Valkey ended while starting .*(Wrong signature|Bad file format).* \(log: "
    ):
        EmbeddedValkey(directory).start()
    assert processes_within(folder) == []
