"""What the tests know of a supervisor in a process of its own, of the command line that starts one, and of the processes it leaves behind."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
import psycopg

from stack.ports import find_free_port

REPOSITORY = Path(__file__).parents[2]
WITH_DEFAULT_SIGINT = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Before a command: what a shell starts in the background ignores Ctrl-C, and so would all that is started from there."""
PATIENCE_S = 60.0
PR_SET_CHILD_SUBREAPER = 36
SITE_PACKAGES = Path(psycopg.__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    supervisor: subprocess.Popen[bytes]
    pid: int
    url: str


class Serve(Protocol):
    def __call__(
        self, kind: str, directory: Path, *, uid: int | None = None, python: str = ...
    ) -> Served: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one that a user is left with."""
        assert "Traceback" not in self.err + self.out
        (line,) = self.err.splitlines()
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    data: Path
    model: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Over ours."""
    patience_s: float = PATIENCE_S

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stack", "--data", str(self.data), *arguments]

    def say(self, *arguments: str) -> Said:
        done = subprocess.run(
            self.command(*arguments),
            cwd=REPOSITORY,
            env=dict(os.environ) | dict(self.env),
            check=False,
            capture_output=True,
            text=True,
            timeout=self.patience_s,
        )
        return Said(status=done.returncode, out=done.stdout, err=done.stderr)

    def up(self, *, port: int | None = None, model: Path | None = None) -> Said:
        return self.say("up", "--port", str(port or find_free_port()), "--model", str(model or self.model))

    def processes(self) -> list[int]:
        """Those that name our folder, as all parts of the stack do in what they are given."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                named = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.data) in named and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return found


@contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile those of our descendants whose parent ends are ours, so that we can ask how they ended."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def family(pid: int) -> list[psutil.Process]:
    """Itself, and all that it has started so far and that still run."""
    leader = psutil.Process(pid)
    return [leader, *leader.children(recursive=True)]


def wait_until_ended(processes: Sequence[psutil.Process], *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while left := [process for process in processes if _runs(process)]:
        assert time.monotonic() < deadline, f"still there after {limit_s} s: {left}"
        time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    """One that nobody has asked how it ended runs no more."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def processes_within(folder: Path) -> list[int]:
    """Pids whose working directory lies in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            where = (entry / "cwd").readlink()
        except OSError:  # gone meanwhile, or another user's
            continue
        if where.is_relative_to(folder):
            found.append(int(entry.name))
    return found


def wait_until_none_within(folder: Path, *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while left := processes_within(folder):
        assert time.monotonic() < deadline, f"still there after {limit_s} s: {left}"
        time.sleep(0.02)


def refused_as(uid: int, python: str, cluster: Path) -> str:
    """The one line in which a PostgreSQL is refused to an account."""
    done = subprocess.run(
        [python, "-m", "tests.stack.serve", "postgres", str(cluster)],
        check=False,
        cwd=REPOSITORY,
        user=uid,
        group=uid,
        extra_groups=[],
        env={"PYTHONPATH": str(SITE_PACKAGES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    return done.stderr
