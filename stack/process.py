"""Child processes that are watched while they start, stopped with their whole group, and never outlive us."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Self

from stack.errors import StackError
from stack.privileges import Account

POLL_S = 0.02
LARGEST_LOG_BYTES = 16 * 2**20
TAIL_BYTES = 64 * 2**10
TETHER = Path(__file__).with_name("tether.py")
COMPLAINT = re.compile(r"FATAL|PANIC|CRITICAL|\bERROR\b|\w*(Error|Exception)\b|\berror:", re.ASCII)
# Lines that match but only point elsewhere.
POINTER = re.compile(r"See root cause above|Traceback \(most recent call last\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  # as in messages: "PostgreSQL", "engine v12"
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None
    stdin: bytes = b""
    inherit: Sequence[int] = ()  # descriptors the child keeps, such as a lock
    stop: Sequence[tuple[Signals, float]] = ((Signals.SIGTERM, 15.0),)  # each with its patience in seconds
    when_orphaned: Signals = Signals.SIGTERM


class Child:
    """A started program. ``stop`` must be called, also when it has died: until then its pid stays reserved."""

    def __init__(self, program: Program, popen: subprocess.Popen[bytes], log_began: int) -> None:
        self.program = program
        self.pid = popen.pid
        self._popen = popen
        self._log_began = log_began

    @classmethod
    def start(cls, program: Program) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "children are started from the main thread: Linux ends them with the thread that started them"
            )
        log_began = _make_room(program.log)
        account = program.account
        uid, gid = ("-", "-") if account is None else (str(account.uid), str(account.gid))
        tether = [
            sys.executable,
            "-I",
            "-S",
            str(TETHER),
            str(os.getpid()),
            str(int(program.when_orphaned)),
            uid,
            gid,
        ]
        with program.log.open("ab") as log:
            popen = subprocess.Popen(
                [*tether, *program.argv],
                env=dict(program.env),
                cwd=program.cwd,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=program.inherit,
                start_new_session=True,  # the terminal's Ctrl-C is ours to handle
            )
        child = cls(program, popen, log_began)
        child._feed()
        return child

    def exit_status(self) -> int | None:
        """As of ``Popen.returncode``; None while it runs. Looks without reaping."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Raises StackError when the program ends first, or is not ready in time; it is then still to be stopped."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            status = self.exit_status()
            if status is not None:
                raise StackError(self._complaint(f"ended while starting ({_describe(status)})"))
            if time.monotonic() > deadline:
                raise StackError(self._complaint(f"was not ready after {timeout_s:.0f} s"))
            time.sleep(POLL_S)

    def wait_end(self, *, timeout_s: float) -> None:
        self._wait(timeout_s)
        if self.exit_status() is None:
            raise StackError(self._complaint(f"was not done after {timeout_s:.0f} s"))

    def stop(self) -> int:
        """Signals the leader, which knows its own children; what is left of its group afterwards is killed."""
        for signum, patience_s in self.program.stop:
            if self.exit_status() is not None:
                break
            os.kill(self.pid, signum)
            self._wait(patience_s)
        if self._popen.returncode is None:
            # The leader is alive or unreaped, so the group's number cannot belong to anybody else.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()

    def log_tail(self) -> str:
        """What this run wrote, at most its last 64 KiB."""
        with self.program.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_began, end - TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _feed(self) -> None:
        stdin = self._popen.stdin
        if stdin is None:
            return
        # A child that is gone already says why in its log.
        with suppress(BrokenPipeError), stdin:
            stdin.write(self.program.stdin)

    def _wait(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while self.exit_status() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _complaint(self, what_happened: str) -> str:
        line = last_meaningful_line(self.log_tail()) or "it wrote nothing"
        return f"{self.program.name} {what_happened}: {line} (log: {self.program.log})"


def last_meaningful_line(text: str) -> str:
    """The last line that complains, else the last line that says anything; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    complaints = [line for line in lines if COMPLAINT.search(line) and not POINTER.search(line)]
    return (complaints or lines or [""])[-1]


def _make_room(log: Path) -> int:
    """Returns the offset at which this run's output begins; one older log is kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    log.touch(mode=0o600)  # statements and prompts end up in logs
    return log.stat().st_size


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit {status}"
    return f"killed by {Signals(-status).name}"
