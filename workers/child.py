"""Child processes that are tied to our life, known by a pidfd, quoted from their log, and stopped with their whole group."""

import os
import select
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Self

from workers.last_words import last_meaningful_line

LARGEST_LOG_BYTES = 16 * 2**20
TAIL_BYTES = 64 * 2**10
TETHER = Path(__file__).with_name("tether.py")
TELL_TO_STOP = {Signals.SIGINT, Signals.SIGTERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  # as in messages: "PostgreSQL", "engine v12"
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path | None = None  # None: ours
    account: Account | None = None
    stdin: bytes = b""
    inherit: Sequence[int] = ()  # descriptors the child keeps, such as a lock
    stop: Sequence[tuple[Signals, float]] = ((Signals.SIGTERM, 15.0),)  # each with its patience in seconds
    when_orphaned: Signals = Signals.SIGTERM


class Watched(ABC):
    """A process that leads a session of its own. ``stop`` must be called, also when it has ended by itself."""

    def __init__(self, program: Program, pid: int, pidfd: int, log_began: int) -> None:
        self.program = program
        self.pid = pid
        self._pidfd: int | None = pidfd
        self._log_began = log_began

    @abstractmethod
    def exit_status(self) -> int | None:
        """As of ``Popen.returncode``; None while it runs."""

    @abstractmethod
    def stop(self) -> int:
        """Signals the leader, which knows its own children; what is left of its group afterwards is killed.

        Returns the exit status. May be called again.
        """

    def ended(self, *, within_s: float = 0.0) -> bool:
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def log_tail(self) -> str:
        """What this run wrote, at most its last 64 KiB."""
        with self.program.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_began, end - TAIL_BYTES))
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        """One line: why it ended, or ails, as far as it said; and where to read on."""
        line = last_meaningful_line(self.log_tail()) or "it wrote nothing"
        # One that is itself about another's end names the log that matters.
        return line if "(log: " in line else f"{line} (log: {self.program.log})"

    def end_of(self) -> str:
        """As in messages; to be asked once it has ended."""
        status = self.exit_status()
        if status is None:
            return "cause unknown"
        return f"exit {status}" if status >= 0 else f"killed by {Signals(-status).name}"

    def _ask_to_end(self) -> None:
        for signum, patience_s in self.program.stop:
            if self.ended():
                return
            self._signal(signum)
            self.ended(within_s=patience_s)

    def _signal(self, signum: Signals) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def _forget(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class Child(Watched):
    """Our own: until ``stop`` its pid stays reserved."""

    def __init__(self, program: Program, popen: subprocess.Popen[bytes], log_began: int) -> None:
        super().__init__(program, popen.pid, os.pidfd_open(popen.pid), log_began)
        self._popen = popen

    @classmethod
    def start(cls, program: Program) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "children are started from the main thread: Linux ends them with the thread that started them"
            )
        log_began = make_room(program.log)
        with program.log.open("ab") as log, _undisturbed():
            popen = subprocess.Popen(
                [*_tether(program), *program.argv],
                env=dict(program.env),
                cwd=program.cwd,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=program.inherit,
                start_new_session=True,  # the terminal's Ctrl-C is ours to handle
            )
            child = cls(program, popen, log_began)
            _unstopped.append(child)
        child._feed()
        return child

    def exit_status(self) -> int | None:
        """Looks without reaping."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def stop(self) -> int:
        self._ask_to_end()
        if self._popen.returncode is None:
            # The leader is alive or unreaped, so the group's number cannot belong to anybody else.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._popen.wait()
        self._forget()
        with suppress(ValueError):
            _unstopped.remove(self)
        return status

    def _feed(self) -> None:
        stdin = self._popen.stdin
        if stdin is None:
            return
        # A child that is gone already says why in its log.
        with suppress(BrokenPipeError), stdin:
            stdin.write(self.program.stdin)


_unstopped: list[Child] = []


@contextmanager
def none_left() -> Iterator[None]:
    """Stops what was started within and still runs at its end, newest first: that too of which a handler that raised kept its starter
    from hearing.
    """
    before = tuple(_unstopped)
    try:
        yield
    finally:
        for child in reversed([child for child in _unstopped if child not in before]):
            child.stop()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A handler that raises between a fork and its record would leave a process that nobody knows of."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TELL_TO_STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_room(log: Path) -> int:
    """Returns the offset at which a new run's output begins; one older log is kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    log.touch(mode=0o600)  # statements and prompts end up in logs
    return log.stat().st_size


def _tether(program: Program) -> tuple[str, ...]:
    account = program.account
    uid, gid = ("-", "-") if account is None else (str(account.uid), str(account.gid))
    runner = (sys.executable, "-I", "-S", str(TETHER))
    return (*runner, str(os.getpid()), str(int(program.when_orphaned)), uid, gid)
