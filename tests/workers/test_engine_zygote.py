"""The zygote: engines are forked from it, fail alone, and never outlive it. That vLLM runs in them, others test."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.engine_zygote import start_engine

ZYGOTE = Path(__file__).with_name("sleeping_engine.py")
ENV = {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "z.sock"


@pytest.fixture
def zygote(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(ZYGOTE), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ) | ENV) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_an_engine_gets_its_arguments_its_environment_and_its_log(
    zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    pid = start_engine(path, ["--port", "7"], {"ONLY": "this"}, log)
    wait_until(lambda: log.exists() and log.read_text() == "['--port', '7'] ['ONLY']\n")
    assert os.getsid(pid) == pid
    assert log.stat().st_mode & 0o077 == 0


def test_an_engine_that_fails_ends_alone_and_says_why(
    zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    failing = start_engine(path, ["--fail"], {}, log)
    wait_until(lambda: gone(failing))
    assert "RuntimeError: no such model" in log.read_text()
    assert not gone(start_engine(path, [], {}, log))


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_no_engine_outlives_its_zygote(
    zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path, death: signal.Signals
) -> None:
    engines = [start_engine(path, [], {}, tmp_path / "log") for _ in range(2)]
    zygote.send_signal(death)
    zygote.wait()
    wait_until(lambda: all(gone(pid) for pid in engines))


def test_an_engine_that_ended_leaves_no_zombie(
    zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path
) -> None:
    pid = start_engine(path, [], {}, tmp_path / "log")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))


@pytest.mark.parametrize("request_", [b"not JSON", b"[]", b"{}", b""])
def test_a_request_that_makes_no_sense_is_answered_and_survived(
    zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path, request_: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        assert b"could not start an engine" in client.recv(4096)
    assert not gone(start_engine(path, [], {}, tmp_path / "log"))


def test_its_socket_is_its_owners_alone(zygote: subprocess.Popen[bytes], path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_a_socket_of_a_zygote_before_is_no_obstacle(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    command = [sys.executable, str(ZYGOTE), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ) | ENV) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()


def test_without_a_zygote_the_client_says_so(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start_engine(path, [], {}, tmp_path / "log")
