"""The connector beside the KV cache: runs loads and saves in the background, off the forward path."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event
from typing import TypeVar

from service.domain.artifact import RefusalReason
from service.domain.evidence import Loaded, Published, Refusal
from workers.kv_connector.jobs import Jobs, LoadJob, Outcomes, SaveJob
from workers.kv_connector.loading import Loader, refusal
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.saving import Saver

logger = logging.getLogger("vllm.everturn")

Outcome = TypeVar("Outcome")
Item = TypeVar("Item")

THREADS = 2
"""Per direction: loads never wait behind saves."""

IDLE_WAIT_S = 0.004
"""The longest that a request which arrives meanwhile is held up."""


@dataclass(slots=True)
class Settled:
    """What the background has finished since it was last asked."""

    loaded: dict[str, Loaded | Refusal] = field(default_factory=dict)
    saved: dict[str, Published | str] = field(default_factory=dict)

    @property
    def refused(self) -> set[str]:
        return {request_id for request_id, outcome in self.loaded.items() if isinstance(outcome, Refusal)}

    @property
    def outcomes(self) -> Outcomes | None:
        return Outcomes(self.loaded, self.saved) if self.loaded or self.saved else None


class WorkerSide:
    def __init__(self, paged: PagedBlocks, loader: Loader, saver: Saver) -> None:
        self._paged = paged
        self._loader = loader
        self._saver = saver
        self._load_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="everturn-load")
        self._save_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="everturn-save")
        self._loaded: SimpleQueue[tuple[str, Loaded | Refusal]] = SimpleQueue()
        self._saved: SimpleQueue[tuple[str, Published | str]] = SimpleQueue()
        self._running = 0
        self._news = Event()

    def start(self, jobs: Jobs) -> None:
        for request_id in jobs.lost:
            lost = Refusal(
                artifact="", reason=RefusalReason.INTERNAL_ERROR, detail="its load was not planned"
            )
            self._loaded.put((request_id, lost))
            self._running += 1
        if not jobs.loads and not jobs.saves:
            return
        self._running += len(jobs.loads) + len(jobs.saves)
        try:
            mark = self._paged.mark()
        except Exception as error:  # the engine holds the requests' blocks until every job is answered
            logger.exception("Everturn could not start the step's KV transfers")
            self._answer_all(jobs, f"{type(error).__name__}: {error}")
            return
        for load in jobs.loads:
            self._load_threads.submit(self._load, load, mark)
        for save in jobs.saves:
            self._save_threads.submit(self._save, save, mark)

    def _answer_all(self, jobs: Jobs, text: str) -> None:
        for load in jobs.loads:
            self._loaded.put((load.request_id, refusal(load, RefusalReason.INTERNAL_ERROR, text)))
        for save in jobs.saves:
            self._saved.put((save.request_id, text))

    def settled(self, *, idle: bool = False) -> Settled:
        """Where the engine has nothing else to do it waits a little, and leaves the interpreter to the transfers."""
        if idle and self._running and self._loaded.empty() and self._saved.empty():
            self._news.wait(IDLE_WAIT_S)
        self._news.clear()
        settled = Settled(loaded=dict(_drain(self._loaded)), saved=dict(_drain(self._saved)))
        self._running -= len(settled.loaded) + len(settled.saved)
        return settled

    def shutdown(self) -> None:
        self._load_threads.shutdown(wait=True)
        self._save_threads.shutdown(wait=True)
        self._loader.shutdown()
        self._saver.shutdown()

    def _load(self, job: LoadJob, mark: object) -> None:
        def failed(text: str) -> Refusal:
            return refusal(job, RefusalReason.INTERNAL_ERROR, text)

        self._loaded.put((job.request_id, _answered(lambda: self._loader.load(job, mark), failed)))
        self._news.set()

    def _save(self, job: SaveJob, mark: object) -> None:
        self._saved.put((job.request_id, _answered(lambda: self._saver.save(job, mark), str)))
        self._news.set()


def _answered(work: Callable[[], Outcome], failed: Callable[[str], Outcome]) -> Outcome:
    try:
        return work()
    except Exception as error:  # the engine holds the request's blocks until every job is answered
        logger.exception("Everturn could not finish a KV transfer")
        return failed(f"{type(error).__name__}: {error}")


def _drain(queue: SimpleQueue[Item]) -> list[Item]:
    items = []
    while True:
        try:
            items.append(queue.get_nowait())
        except Empty:
            return items
