"""Everturn's connector with a clock at each of its hooks: where the time of a hit goes, as the engine's own processes see it."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from workers.kv_connector import local_store
from workers.kv_connector.connector import EverturnConnector
from workers.kv_connector.jobs import LoadJob
from workers.kv_connector.lanes import Lanes
from workers.kv_connector.loading import Loader
from workers.kv_connector.paged import PagedBlocks

FOLDER = "trace"
"""As `bench.hit_profile` looks for it, in the engine's run folder: a file for each process, a line for each moment, by the machine's monotonic clock in ns."""


class Trace:
    def __init__(self, run_dir: Path, name: str) -> None:
        (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / FOLDER / name).open("a", buffering=1)

    def note(self, what: str) -> None:
        self._file.write(f"{time.monotonic_ns()} {what}\n")


class Spent:
    """CPU time of a load's threads, by what it was spent on."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.ns: Counter[str] = Counter()

    def on(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return work(*args, **kwargs)
            finally:
                with self._lock:
                    self.ns[name] += time.thread_time_ns() - began

        return timed


class TracedConnector(EverturnConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._trace = Trace(self._run_dir, role.name)

    def register_kv_caches(self, kv_caches: Any) -> None:
        _trace_loads(self._trace)
        super().register_kv_caches(kv_caches)

    def on_new_request(self, request: Any) -> None:
        self._trace.note("arrived")
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        found = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._trace.note("matched")
        return found

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._trace.note("planned" if scheduler_output.total_num_scheduled_tokens else "planned nothing")
        return super().build_connector_meta(scheduler_output)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """After the forward pass, as vLLM calls it where no load must come before."""
        self._trace.note("idle" if forward_context.attn_metadata is None else "computed")
        super().start_load_kv(forward_context, **kwargs)


def _trace_loads(trace: Trace) -> None:
    """In this process alone, which is the engine's worker."""
    spent = Spent()
    for owner, name, what in (
        (local_store, "_read_whole", "read"),
        (local_store, "checksum", "hash"),
        (PagedBlocks, "copy_in", "copy"),
    ):
        setattr(owner, name, spent.on(what, getattr(owner, name)))
    each, load = Lanes.each, Loader.load

    def timed_each(lanes: Lanes, items: Any, lane: Callable[[Any], None]) -> None:
        each(lanes, items, spent.on("all", lane))

    def traced_load(loader: Loader, job: LoadJob, mark: Any, hold: Any = None) -> Any:
        spent.ns.clear()
        trace.note("load began")
        outcome = load(loader, job, mark, hold)
        trace.note("load ended")
        trace.note("spent " + " ".join(f"{name}={ns}" for name, ns in spent.ns.items()))
        return outcome

    for whole, name, traced in ((Lanes, "each", timed_each), (Loader, "load", traced_load)):
        setattr(whole, name, traced)
