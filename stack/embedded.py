"""What the embedded servers have in common: one for each directory, started and stopped as a child, in a place it can reach."""

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from stack.locks import lock_server, lock_supervisor
from stack.placement import SHELTER, Placement, damaged, place
from stack.process import Child
from workers.child import Program

OLD_SERVER_PATIENCE_S = 15.0
# Programs of a server see nothing of our environment: PG* variables would change what they do.
BARE_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class EmbeddedServer(ABC):
    """Use as a context manager, or ``start`` and ``stop``; it may be started again after a stop or a crash."""

    NAME: ClassVar[str]

    def __init__(self, directory: Path, log: str, *, start_timeout_s: float, shelter: Path = SHELTER) -> None:
        self.directory = directory.absolute()
        self.log = self.directory / log
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
        programs = self._programs()
        try:
            self._start(programs)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Lets it write what is pending first."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._held.close()

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError(f"{self.NAME} is not started")
        return self._child

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _programs(self) -> Path:
        """The folder they lie in."""

    @abstractmethod
    def _prepare(self, placement: Placement, programs: Path, server_lock: int) -> Program:
        """Makes data, password and socket folder; called with both locks held."""

    @abstractmethod
    def _answers(self) -> bool: ...

    def _start(self, programs: Path) -> None:
        placement = place(self.directory, shelter=self._shelter)
        self._held.callback(os.close, lock_supervisor(placement.home))
        server_lock = lock_server(placement.home, patience_s=OLD_SERVER_PATIENCE_S)
        try:
            self._child = Child.start(self._prepare(placement, programs, server_lock))
        finally:
            # From here on the server's processes alone hold it.
            os.close(server_lock)
        self._child.wait_ready(
            self._answers, timeout_s=self._start_timeout_s, way_out=damaged(placement.data)
        )
