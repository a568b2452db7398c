"""What two engines on the same processors cost each other by nature: people on one of them, and plain prefills on the other.

As many tokens as a warm-up would have prefilled, of the same histories, at its pace and in its pieces; but no rollout, no queue, and
nothing that is stored.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx

from bench.rollout_fleet import BenchFleet, Served
from bench.rollout_load import Crowd
from service.domain.rebuild import next_boundary
from service.rollout_advance_flow import ROUNDS
from service.settings import Settings
from workers.vllm_command import BLOCK_SIZE

CHUNK = Settings.model_fields["rebuild_chunk_tokens"].default
IDLE_S = 0.25


@contextmanager
def prefilling(fleet: BenchFleet, engine: Served, crowd: Crowd, tokens_per_s: int) -> Iterator[None]:
    """Until the block is left, the histories of who talks there, one after the other, on an engine that nobody talks to.

    Raises: httpx.HTTPError: of the engine, when the block is left.
    """
    over, failures = threading.Event(), list[httpx.HTTPError]()

    def prefill() -> None:
        try:
            for number in count():
                _as_a_warm_up(_Prefiller(fleet, engine, tokens_per_s, f"floor {number}", over), crowd)
                if over.is_set():
                    return
        except httpx.HTTPError as error:
            failures.append(error)

    thread = threading.Thread(target=prefill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


class _Prefiller:
    def __init__(
        self, fleet: BenchFleet, engine: Served, tokens_per_s: int, salt: str, over: threading.Event
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._pace = tokens_per_s
        self._salt = salt
        self._over = over
        self._done: dict[str, int] = {}
        """By conversation: tokens that the engine has in its own memory."""

    def warm(self, conversation: str, turn: str) -> None:
        window = (*self._fleet.auditor.prompt(turn), *self._fleet.auditor.output(turn))
        done = self._done.get(conversation, 0)
        while done < len(window) and not self._over.is_set():
            end = next_boundary(done=done, total=len(window), chunk=CHUNK, block=BLOCK_SIZE)
            began = time.monotonic()
            self._engine.cold(window[:end], 1, salt=self._salt)
            self._over.wait(max(0.0, began + (end - done) / self._pace - time.monotonic()))
            done = end
        self._done[conversation] = done


def _as_a_warm_up(prefiller: _Prefiller, crowd: Crowd) -> None:
    """Everyone, and twice more what they have said meanwhile."""
    for _ in range(ROUNDS):
        for person in crowd.people:
            answered = [one for one in person.said if one.ok]
            if answered:
                prefiller.warm(answered[-1].conversation, answered[-1].turn)
