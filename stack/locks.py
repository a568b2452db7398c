"""One supervisor and one server for each data directory, by flock: the kernel lets go when the holder dies.

A pid file can be empty, stale, or name a process that reused the number. A lock cannot.
"""

import fcntl
import os
import time
from pathlib import Path

from stack.errors import StackError

POLL_S = 0.02
# A killed process holds its locks a moment longer, while the kernel takes it apart.
SUPERVISOR_PATIENCE_S = 1.0


def lock_supervisor(home: Path) -> int:
    """Returns the descriptor that holds the lock; it is not inherited by children.

    Raises:
        StackError: another living supervisor holds it.
    """
    path = home / "supervisor.lock"
    descriptor = _open(path)
    if not _try(descriptor, patience_s=SUPERVISOR_PATIENCE_S):
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StackError(
            f"{home} is in use by another running stack (pid {holder}): stop that one, or choose another data directory"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def lock_server(home: Path, *, patience_s: float) -> int:
    """Meant to be inherited: while any process of the old server lives, no new one gets it.

    Raises:
        StackError: a server of an earlier, killed supervisor is still there after ``patience_s``.
    """
    descriptor = _open(home / "server.lock")
    if not _try(descriptor, patience_s=patience_s):
        os.close(descriptor)
        raise StackError(
            f"a server of an earlier run still uses {home} after {patience_s:.0f} s: "
            f"end the processes that `fuser {home / 'server.lock'}` lists"
        )
    return descriptor


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StackError(
            f"cannot open {path}: {error.strerror}; start the stack as the user who owns it, or choose another directory"
        ) from error


def _try(descriptor: int, *, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True
