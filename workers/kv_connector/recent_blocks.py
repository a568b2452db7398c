"""Blocks that a rebuild has put into the store, or found there whole, a moment ago: its next chunk need not read them again."""

import time
from collections import OrderedDict
from threading import Lock

from service.domain.artifact import Block, MadeBy
from workers.kv_connector.store import GRACE_MS, LONGEST_TRANSFER_S

KNOWN_FOR_S = LONGEST_TRANSFER_S
"""Since they were last put or kept: so long the collector takes none of them, and what stands under the name is the same."""
MOST = 16_384

Known = tuple[Block, MadeBy]

assert KNOWN_FOR_S * 1000 < GRACE_MS  # noqa: S101 a constant of ours against another


class RecentBlocks:
    """By their keys, which stand for tokens, revision and tenant, and by whose attempts they are of. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, str], tuple[Known, float]] = OrderedDict()

    def find(self, key: str, attempt: str) -> Known | None:
        with self._lock:
            known, since = self._known.get((_whose(attempt), key), (None, 0.0))
        return known if time.monotonic() - since < KNOWN_FOR_S else None

    def add(self, key: str, attempt: str, known: Known, since: float) -> None:
        """Args: since: monotonic seconds, from before the store was asked to put or keep it."""
        with self._lock:
            place = _whose(attempt), key
            self._known[place] = known, since
            self._known.move_to_end(place)
            while len(self._known) > MOST:
                self._known.popitem(last=False)


def _whose(attempt: str) -> str:
    """The turn or the rebuild: what others publish of the same tokens is looked at, and mended where it was damaged."""
    return attempt.partition(".")[0]
