"""The zygote: engines are forked from it, fail alone, and outlive neither it nor their client. That vLLM runs in them, others test."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from workers.child import Program
from workers.zygote_engine import ZygoteEngine

ZYGOTE = Path(__file__).with_name("sleeping_engine.py")
ENV = {"PYTHONPATH": str(Path(__file__).parents[2])}

Start = Callable[..., ZygoteEngine]


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


@pytest.fixture
def start(zygote: subprocess.Popen[bytes], path: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[ZygoteEngine] = []

    def start_engine(argv: Sequence[str] = (), env: Mapping[str, str] | None = None) -> ZygoteEngine:
        log = tmp_path / f"engine{len(started)}.log"
        program = Program(name="engine", argv=argv, env=env or {}, log=log, stop=((signal.SIGTERM, 1.0),))
        started.append(ZygoteEngine.start(path, program))
        return started[-1]

    yield start_engine
    for engine in started:
        engine.stop()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def group_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def stubborn(start: Start) -> ZygoteEngine:
    engine = start(["--stubborn"])
    wait_until(lambda: "stubborn" in engine.log_tail())
    assert len(group_of(engine.pid)) == 2
    return engine


def test_an_engine_gets_its_arguments_its_environment_and_its_log(start: Start) -> None:
    engine = start(["--port", "7"], {"ONLY": "this"})
    wait_until(lambda: engine.log_tail() == "['--port', '7'] ['ONLY']\n")
    assert os.getsid(engine.pid) == engine.pid
    assert engine.program.log.stat().st_mode & 0o077 == 0


def test_an_engine_that_fails_ends_alone_and_says_why(start: Start) -> None:
    failing = start(["--fail"])
    assert failing.ended(within_s=10)
    assert failing.end_of() == "exit 1"
    assert failing.last_words().startswith("RuntimeError: no such model")
    assert not start().ended()


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_no_engine_outlives_its_zygote(
    zygote: subprocess.Popen[bytes], start: Start, death: signal.Signals
) -> None:
    engines = [start() for _ in range(2)]
    zygote.send_signal(death)
    zygote.wait()
    assert all(engine.ended(within_s=10) for engine in engines)
    assert engines[0].end_of() == "cause unknown"


def test_no_engine_outlives_a_killed_client(start: Start, path: Path, tmp_path: Path) -> None:
    other = start()
    code = f"""
import time
from pathlib import Path
from workers.child import Program
from workers.zygote_engine import ZygoteEngine
log = Path({str(tmp_path)!r}, "theirs.log")
engine = ZygoteEngine.start(Path({str(path)!r}), Program(name="engine", argv=[], env={{}}, log=log))
print(engine.pid, flush=True)
time.sleep(60)
"""
    environment = dict(os.environ) | ENV
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert not gone(pid)
        client.kill()
    wait_until(lambda: gone(pid))
    assert not other.ended()


def test_an_orphan_that_will_not_end_is_killed_with_all_its_own(start: Start) -> None:
    engine = stubborn(start)
    engine._tether.shutdown(socket.SHUT_RDWR)
    assert engine.ended(within_s=10)
    wait_until(lambda: not group_of(engine.pid))


def test_stop_kills_an_engine_that_will_not_end_with_all_its_own(start: Start) -> None:
    engine = stubborn(start)
    assert engine.stop() == -signal.SIGKILL
    wait_until(lambda: not group_of(engine.pid))
    assert engine.stop() == -signal.SIGKILL, "it may be called again"


def test_what_an_engine_leaves_behind_is_killed(start: Start) -> None:
    engine = stubborn(start)
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: not group_of(engine.pid))
    assert engine.end_of() == "killed by SIGKILL"


@pytest.mark.parametrize("request_", [b"not JSON\n", b"[]\n", b"{}\n", b"", b"half a li"])
def test_a_request_that_makes_no_sense_is_answered_and_survived(
    start: Start, path: Path, request_: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        assert b"could not start an engine" in client.recv(4096)
    assert not start().ended()


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
        ZygoteEngine.start(path, Program(name="engine", argv=[], env={}, log=tmp_path / "log"))
