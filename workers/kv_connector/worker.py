"""The connector beside the KV cache: runs loads and saves in the background, off the forward path."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import TypeVar

from service.domain.artifact import RefusalReason
from service.domain.evidence import Loaded, Published, Refusal
from workers.kv_connector.holds import GivenUp, Hold
from workers.kv_connector.jobs import Jobs, LoadJob, Outcomes, SaveJob
from workers.kv_connector.loading import Loader, refusal
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.saving import Saver

logger = logging.getLogger("vllm.everturn")

Item = TypeVar("Item")

THREADS = 2
"""Per direction: loads never wait behind saves."""

IDLE_WAIT_S = 0.004
"""The longest that a request which arrives meanwhile is held up."""

STALLED_AFTER_S = 10.0
"""A transfer that has moved no block for so long hangs, and so does whatever waits behind it."""


@dataclass(slots=True)
class Settled:
    """What the background has finished since it was last asked."""

    loaded: dict[str, Loaded | Refusal] = field(default_factory=dict)
    saved: dict[str, Published | str] = field(default_factory=dict)
    stalled: bool = False
    news: bool = False
    """Whether `stalled` is another than when last asked."""

    @property
    def refused(self) -> set[str]:
        return {request_id for request_id, outcome in self.loaded.items() if isinstance(outcome, Refusal)}

    @property
    def outcomes(self) -> Outcomes | None:
        told = self.loaded or self.saved or self.news
        return Outcomes(self.loaded, self.saved, self.stalled) if told else None


@dataclass(slots=True, kw_only=True, eq=False)
class _Transfer:
    """In the background until its thread returns, which a hanging store may keep it from for ever."""

    job: LoadJob | SaveJob
    since: float
    hold: Hold = field(default_factory=Hold)
    answered: bool = False


class WorkerSide:
    def __init__(
        self, paged: PagedBlocks, loader: Loader, saver: Saver, *, stalled_after_s: float = STALLED_AFTER_S
    ) -> None:
        self._paged = paged
        self._loader = loader
        self._saver = saver
        self._stalled_after_s = stalled_after_s
        begin = paged.device.thread_begins
        self._load_threads = ThreadPoolExecutor(THREADS, "everturn-load", initializer=begin)
        self._save_threads = ThreadPoolExecutor(THREADS, "everturn-save", initializer=begin)
        self._loaded: SimpleQueue[tuple[str, Loaded | Refusal]] = SimpleQueue()
        self._saved: SimpleQueue[tuple[str, Published | str]] = SimpleQueue()
        self._running = 0
        self._news = Event()
        self._lock = Lock()
        self._transfers: list[_Transfer] = []
        self._stalled = False

    def start(self, jobs: Jobs) -> None:
        for request_id in jobs.lost:
            lost = Refusal(
                artifact="", reason=RefusalReason.INTERNAL_ERROR, detail="its load was not planned"
            )
            self._loaded.put((request_id, lost))
            self._running += 1
        transfers: tuple[LoadJob | SaveJob, ...] = (*jobs.loads, *jobs.saves)
        if not transfers:
            return
        self._running += len(transfers)
        try:
            mark = self._paged.device.mark()
        except Exception as error:  # the engine holds the requests' blocks until every job is answered
            logger.exception("Everturn could not start the step's KV transfers")
            for job in transfers:
                self._answer(job, f"{type(error).__name__}: {error}", RefusalReason.INTERNAL_ERROR)
            return
        for job in transfers:
            transfer = _Transfer(job=job, since=time.monotonic())
            with self._lock:
                self._transfers.append(transfer)
            threads = self._load_threads if isinstance(job, LoadJob) else self._save_threads
            threads.submit(self._run, transfer, mark)

    def settled(self, *, idle: bool = False) -> Settled:
        """Where the engine has nothing else to do it waits a little, and leaves the interpreter to the transfers."""
        if not (self._running or self._stalled):
            return Settled()  # of most steps: nothing was begun that has not been told
        if idle and self._running and self._loaded.empty() and self._saved.empty():
            self._news.wait(IDLE_WAIT_S)
        self._news.clear()
        before, self._stalled = self._stalled, self._give_up_what_hangs()
        settled = Settled(
            loaded=dict(_drain(self._loaded)),
            saved=dict(_drain(self._saved)),
            stalled=self._stalled,
            news=before is not self._stalled,
        )
        self._running -= len(settled.loaded) + len(settled.saved)
        return settled

    def shutdown(self) -> None:
        hangs = self._give_up_what_hangs()
        for threads in (self._load_threads, self._save_threads):
            threads.shutdown(wait=not hangs, cancel_futures=hangs)
        if not hangs:
            self._loader.shutdown()
            self._saver.shutdown()

    def _run(self, transfer: _Transfer, mark: object) -> None:
        outcome: Loaded | Published | Refusal | str
        try:
            transfer.hold.begin()
            if isinstance(transfer.job, LoadJob):
                outcome = self._loader.load(transfer.job, mark, transfer.hold)
            else:
                outcome = self._saver.save(transfer.job, mark, transfer.hold)
        except GivenUp as error:
            outcome = str(error)
        except Exception as error:  # the engine holds the request's blocks until every job is answered
            logger.exception("Everturn could not finish a KV transfer")
            outcome = f"{type(error).__name__}: {error}"
        with self._lock:
            self._transfers.remove(transfer)
            late, transfer.answered = transfer.answered, True
        if not late:
            self._answer(transfer.job, outcome, RefusalReason.INTERNAL_ERROR)
            self._news.set()

    def _answer(
        self, job: LoadJob | SaveJob, outcome: Loaded | Published | Refusal | str, reason: RefusalReason
    ) -> None:
        """Words for what neither the loader nor the saver could say."""
        if isinstance(job, LoadJob):
            told = outcome if isinstance(outcome, Loaded | Refusal) else refusal(job, reason, str(outcome))
            self._loaded.put((job.request_id, told))
        else:
            self._saved.put((job.request_id, outcome if isinstance(outcome, Published) else str(outcome)))

    def _give_up_what_hangs(self) -> bool:
        """Whether the store hangs. If so, whoever waited for it long enough gets an answer, and the engine its blocks."""
        too_long_ago = time.monotonic() - self._stalled_after_s
        with self._lock:
            moved = [transfer.hold.still_since() for transfer in self._transfers]
            if not any(at is not None and at < too_long_ago for at in moved):
                return False
            given_up = [
                transfer
                for transfer in self._transfers
                if not transfer.answered and transfer.since < too_long_ago and transfer.hold.give_up()
            ]
            for transfer in given_up:
                transfer.answered = True
        for transfer in given_up:
            words = f"the store moved no block for {self._stalled_after_s:g} s"
            logger.error("Everturn gives up a KV transfer of %s: %s", transfer.job.artifact, words)
            self._answer(transfer.job, words, RefusalReason.STORE_UNREACHABLE)
        return True


def _drain(queue: SimpleQueue[Item]) -> list[Item]:
    items = []
    while True:
        try:
            items.append(queue.get_nowait())
        except Empty:
            return items
