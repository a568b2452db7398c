"""The process of one engine: our own child or the zygote's, which never outlives the launcher unasked."""

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from service.domain.errors import EngineFailed, InvalidInput
from workers.engine_zygote import start_engine
from workers.vllm_command import PROGRAM, Command

TAIL_BYTES = 64 * 2**10
LARGEST_LOG_BYTES = 16 * 2**20
LONGEST_LINE = 600
# As in "(EngineCore pid=17) ERROR 01-31 12:00:00 [core.py:1099] ".
LOG_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^]]*\] ?)?")
# An exception's own line: those of its traceback are indented.
COMPLAINT = re.compile(r"([\w.]*(Error|Exception): |\S+: error: |FATAL|CRITICAL)", re.ASCII)
# Lines that match but only point elsewhere.
POINTER = re.compile(r"See root cause above|See stack trace for root cause")


class EngineProcess:
    """Known by a pidfd: a pid that was given to another process meanwhile is never signalled."""

    def __init__(self, pid: int, log: Path, *, log_began: int, popen: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._log = log
        self._log_began = log_began
        self._popen = popen
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    @classmethod
    def start(cls, command: Command, log: Path) -> Self:
        """Must be called from the main thread: Linux ends the child with the thread that started it."""
        began = _make_room(log)
        tied_to_us = ("setpriv", "--pdeathsig", "TERM", "--")
        with log.open("ab") as output:
            try:
                popen = subprocess.Popen(
                    [*tied_to_us, sys.executable, "-m", PROGRAM, *command.arguments],
                    env=dict(command.env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # the terminal's Ctrl-C is the launcher's to handle
                )
            except FileNotFoundError as error:
                raise InvalidInput("'setpriv' is missing: install util-linux.") from error
        return cls(popen.pid, log, log_began=began, popen=popen)

    @classmethod
    def adopt(cls, zygote: Path, command: Command, log: Path) -> Self:
        """Has the zygote at this socket fork the engine. Raises: OSError."""
        began = _make_room(log)
        pid = start_engine(zygote, command.arguments, command.env, log)
        return cls(pid, log, log_began=began, popen=None)

    def ended(self, *, within_s: float = 0.0) -> bool:
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def stop(self, *, patience_s: float) -> None:
        """SIGTERM, then SIGKILL to its whole group; returns when it has ended."""
        self._signal(signal.SIGTERM)
        self.ended(within_s=patience_s)
        self._kill_group()
        self.ended(within_s=patience_s)
        if self._popen is not None:
            self._popen.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def check_alive(self, what: str) -> None:
        """Raises:
        EngineFailed: it has ended; with the last thing it had to say.
        """
        if self.ended():
            raise EngineFailed(f"{what}: {self.last_words()} (log: {self._log})")

    def last_words(self) -> str:
        with self._log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_began, end - TAIL_BYTES))
            return last_meaningful_line(log.read().decode(errors="replace")) or "it wrote nothing"

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _kill_group(self) -> None:
        # Its leader is alive, or ours and not reaped: the group's number cannot be another's.
        if self._popen is not None or not self.ended():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def last_meaningful_line(text: str) -> str:
    """The last exception that is its own cause, with its detail; else the last line that says anything."""
    lines = [line for raw in text.splitlines() if (line := LOG_PREFIX.sub("", raw).rstrip())]
    complaints = [at for at, line in enumerate(lines) if COMPLAINT.match(line) and not POINTER.search(line)]
    if not complaints:
        return lines[-1].strip() if lines else ""
    at = complaints[-1]
    detail = [line.strip() for line in lines[at + 1 : at + 2] if line.startswith("  ")]
    return " ".join([lines[at], *detail])[:LONGEST_LINE]


def _make_room(log: Path) -> int:
    """Returns the offset at which this run's output begins; one older log is kept."""
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    log.touch(mode=0o600)  # prompts end up in logs
    return log.stat().st_size
