"""Shared memory that an engine has by name: it outlives the engine where that is killed, or told to stop at once, and its container's restart."""

import logging
import os
import time
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")  # noqa: S108 where Linux has it
NAMES = ("psm_", "vllm_offload_")
"""Python's, which vLLM's processes talk through; and vLLM's own, of offloaded KV: gigabytes."""
CLOCK_TICK_S = 0.1
"""Files are stamped with the time of the kernel's last tick."""


class NamedMemory:
    """An engine that ends well drops the names itself. What another process made, such as a cache server, stays."""

    def __init__(self, session: int) -> None:
        """To be made when the engine is started; `session` is the pid of its leader."""
        self._session = session
        self._began = time.time() - CLOCK_TICK_S
        self._names: set[Path] = set()

    def look(self) -> None:
        """Notes what its processes have mapped now."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        for pid in pids:
            try:
                if os.getsid(pid) == self._session:
                    self._names.update(_mapped(pid))
            except (ProcessLookupError, PermissionError):
                continue

    def drop(self) -> None:
        """Once it has ended."""
        for path in self._names:
            try:
                if path.stat().st_ctime >= self._began:
                    path.unlink()
                    log.info("removed %s, which the engine left", path)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s, which the engine left, cannot be removed: %s", path, error)
        self._names.clear()


def _mapped(pid: int) -> set[Path]:
    """Raises: ProcessLookupError, PermissionError."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
    named = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if f"{FOLDER}/" in line}
    return {path for path in map(Path, named) if path.parent == FOLDER and path.name.startswith(NAMES)}
