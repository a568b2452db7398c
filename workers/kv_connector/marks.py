"""What was lately used or kept in an object store, which has no time of change to set: empty objects beside the real ones.

A mark is written at most every `MARK_EVERY_S` for each object, and that of a use in the background: a turn never waits for it.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from queue import Full, Queue
from threading import Lock, Thread

from workers.kv_connector.store import ObjectName

logger = logging.getLogger("vllm.everturn")

MARK_EVERY_S = 300.0
FOLDER = "marks"

REMEMBERED = 65_536
WAITING = 256
"""Marks of uses; beyond that they are dropped, and an artifact may seem unused for a little longer than it was."""


def mark_of(name: ObjectName) -> ObjectName:
    return ObjectName(f"{FOLDER}/{name}")


def marked_by(mark: ObjectName) -> ObjectName:
    return ObjectName(mark.removeprefix(f"{FOLDER}/"))


class Marks:
    def __init__(self, put: Callable[[ObjectName], None]) -> None:
        """`put` writes an empty object over whatever has its name. Raises: OSError."""
        self._put = put
        self._lock = Lock()
        self._made: OrderedDict[ObjectName, float] = OrderedDict()
        self._waiting: Queue[ObjectName] = Queue(WAITING)
        self._thread: Thread | None = None

    def make(self, name: ObjectName) -> None:
        """Raises: OSError."""
        if not self._due(name):
            return
        try:
            self._put(mark_of(name))
        except OSError:
            self._forget(name)
            raise

    def make_soon(self, name: ObjectName) -> None:
        if not self._due(name):
            return
        try:
            self._waiting.put_nowait(name)
        except Full:
            self._forget(name)
            return
        with self._lock:
            if self._thread is None:
                # A daemon: an engine that ends does not wait for a store that hangs.
                self._thread = Thread(target=self._work, name="everturn-marks", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            name = self._waiting.get()
            try:
                self._put(mark_of(name))
            except OSError as error:
                self._forget(name)
                logger.info("Everturn cannot mark %s as used: %s", name, error)

    def _due(self, name: ObjectName) -> bool:
        now = time.monotonic()
        with self._lock:
            made = self._made.get(name)
            if made is not None and now < made + MARK_EVERY_S:
                return False
            self._made[name] = now
            self._made.move_to_end(name)
            while len(self._made) > REMEMBERED:
                self._made.popitem(last=False)
        return True

    def _forget(self, name: ObjectName) -> None:
        with self._lock:
            self._made.pop(name, None)
