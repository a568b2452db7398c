import os
import subprocess
from pathlib import Path

import pytest

from stack.errors import StackError
from stack.locks import lock_server, lock_supervisor
from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey


def test_one_supervisor_at_a_time_and_the_next_after_it(tmp_path: Path) -> None:
    first = lock_supervisor(tmp_path)
    with pytest.raises(StackError, match=rf"in use by another running stack \(pid {os.getpid()}\)"):
        lock_supervisor(tmp_path)
    os.close(first)
    os.close(lock_supervisor(tmp_path))


@pytest.mark.parametrize("leftover", [b"", b"999999999\n", b"\xff garbage"])
def test_a_leftover_lock_file_is_no_obstacle(tmp_path: Path, leftover: bytes) -> None:
    (tmp_path / "supervisor.lock").write_bytes(leftover)
    os.close(lock_supervisor(tmp_path))
    assert (tmp_path / "supervisor.lock").read_text() == f"{os.getpid()}\n"


def test_a_server_of_an_earlier_run_is_waited_for_and_then_named(tmp_path: Path) -> None:
    inherited = lock_server(tmp_path, patience_s=0)
    with subprocess.Popen(["sleep", "60"], pass_fds=(inherited,)) as earlier:
        os.close(inherited)
        with pytest.raises(StackError, match="a server of an earlier run still uses"):
            lock_server(tmp_path, patience_s=0.1)
        earlier.terminate()
    os.close(lock_server(tmp_path, patience_s=0))


def test_running_servers_hold_their_own_lock(
    postgres_server: EmbeddedPostgres, valkey_server: EmbeddedValkey
) -> None:
    for server in (postgres_server, valkey_server):
        with pytest.raises(StackError, match="a server of an earlier run still uses"):
            lock_server(server.directory, patience_s=0)


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"cannot open .*supervisor.lock: No such file"):
        lock_supervisor(tmp_path / "absent")
