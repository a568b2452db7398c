"""An engine that the zygote forks for us: asked for, watched and ended over one connection, which is also its tether."""

import json
import socket
from pathlib import Path
from signal import Signals
from typing import Any, Self

from workers.child import Program, Watched, make_room

END_PATIENCE_S = 10.0


class ZygoteEngine(Watched):
    """The zygote ends it when the connection ends: when we close it, and when we are killed."""

    def __init__(self, program: Program, pid: int, pidfd: int, log_began: int, tether: socket.socket) -> None:
        super().__init__(program, pid, pidfd, log_began)
        self._tether = tether
        self._status: int | None = None

    @classmethod
    def start(cls, zygote: Path, program: Program) -> Self:
        """Args:
            zygote: its socket.
            program: `argv` holds the arguments of vLLM's API server; `cwd`, `account` and `inherit` are the zygote's own.

        Raises:
            OSError: there is no zygote, or it could not fork.
        """
        log_began = make_room(program.log)
        tether = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            tether.connect(str(zygote))
            request = {"argv": list(program.argv), "env": dict(program.env), "log": str(program.log)}
            tether.sendall(json.dumps(request).encode() + b"\n")
            answer, pidfds = _answer(tether)
        except BaseException:
            tether.close()
            raise
        if not pidfds:
            tether.close()
            raise OSError(answer["error"])
        return cls(program, int(answer["pid"]), pidfds[0], log_began, tether)

    def exit_status(self) -> int | None:
        """None also where the zygote ended first: nobody knows then."""
        if self._status is None and self.ended():
            self._status = self._last_answer()
        return self._status

    def stop(self) -> int:
        """-1 where nobody knows how it ended."""
        self._ask_to_end()
        self._signal(Signals.SIGKILL)
        self.ended(within_s=END_PATIENCE_S)
        status = self.exit_status()
        self._tether.close()
        self._forget()
        return -1 if status is None else status

    def _last_answer(self) -> int | None:
        """Comes when the rest of its group is gone as well."""
        if self._tether.fileno() < 0:
            return None
        self._tether.settimeout(END_PATIENCE_S)
        try:
            answer, _ = _answer(self._tether)
        except OSError:
            return None
        return int(answer["status"])


def _answer(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Raises: OSError."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
    if not data:
        raise ConnectionResetError("the zygote ended")
    answer: dict[str, Any] = json.loads(data)
    return answer, descriptors
