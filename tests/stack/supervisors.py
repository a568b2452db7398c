"""What the tests know of a supervisor in a process of its own, and of the processes it leaves behind."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg

REPOSITORY = Path(__file__).parents[2]
WITH_DEFAULT_SIGINT = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Before a command: what a shell starts in the background ignores Ctrl-C, and so would all that is started from there."""
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
