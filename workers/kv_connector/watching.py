"""How the scheduler side learns of weights that changed: from a small mapped file, since they lie in another process, and asking costs too much.

A question would wait for that process's interpreter, which spins between steps: several milliseconds for every request.
"""

import logging
import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from service.domain.errors import InvalidInput
from workers.kv_connector.weights_watch import WeightsWatch

logger = logging.getLogger("vllm.everturn")

POST = struct.Struct("<Qd")
"""How many changes, and when last looked, by the machine's monotonic clock."""

EVERY_S = 0.1
POLL_SHARE = 0.02
"""Of the time at most, where a look takes long."""

STALE_S = 30.0
"""Whoever has not looked for so long does not look any more."""


def path_of(run_dir: Path, rank: int) -> Path:
    return run_dir / f"weights.{rank}"


class WatchPost:
    """On the worker side: looks ten times a second, and whenever it is told to. Safe to use from many threads."""

    def __init__(self, path: Path, watch: WeightsWatch) -> None:
        self._watch = watch
        path.parent.mkdir(parents=True, exist_ok=True)
        # A new file each time: a reader of a boot before must not take this one's word.
        path.unlink(missing_ok=True)
        path.write_bytes(POST.pack(0, time.monotonic()))
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), POST.size)
        self._broken = 0
        self._closed = Event()
        self._thread = Thread(target=self._keep_looking, name="everturn-watch", daemon=True)
        self._thread.start()

    def look(self) -> int:
        """How often the weights were changed. That they cannot be looked at counts as a change."""
        return self._posted(self._watch.look)

    def glance(self) -> int:
        """As `look`, for whoever comes often."""
        return self._posted(self._watch.glance)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _posted(self, look: Callable[[], int]) -> int:
        try:
            changes = look()
        except Exception:
            logger.exception("Everturn cannot look at its weights")
            self._broken += 1
            changes = self._watch.changes
        POST.pack_into(self._file, 0, changes + self._broken, time.monotonic())
        return changes + self._broken

    def _keep_looking(self) -> None:
        pause_s = EVERY_S
        while not self._closed.wait(pause_s):
            began = time.monotonic()
            self.look()
            pause_s = max(EVERY_S, (time.monotonic() - began) / POLL_SHARE)


class WatchReader:
    """On the scheduler side."""

    def __init__(self, path: Path) -> None:
        """Raises: InvalidInput, where no worker writes there."""
        try:
            with path.open("rb") as file:
                self._file = mmap.mmap(file.fileno(), POST.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"Nobody looks at the weights ({error}): rank 0 must run on the machine of the engine's core.",
                "weights",
            ) from error

    def changes(self) -> int:
        """Raises: OSError, where nobody has looked for long."""
        changes, looked_at = POST.unpack_from(self._file)
        if time.monotonic() > looked_at + STALE_S:
            raise TimeoutError("the worker looks at its weights no more")
        return int(changes)
