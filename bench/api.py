"""`make bench-api`: what the service adds to a vLLM engine, what a stream weighs, and whether memory stays flat.

Without the service, with it, and through OGX take turns in short rounds on one engine, so that a busy machine slows all alike. Then with and
without it once more, on an engine that takes as long and leaves the cores alone.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.api_added import added_figures
from bench.api_idle import idle_figures
from bench.api_memory import soak_figures, stream_figures
from bench.api_rows import rows
from bench.api_service import BenchService, running_service
from bench.api_steps import traced_service
from bench.store import say_load
from stack.postgres import EmbeddedPostgres

STREAMS = (1, 8, 32)
CHECKPOINT = Path(".everturn/checkpoints/v12")
WARM_UP_TURNS = 1000
"""Where no soak has gone before: PostgreSQL plans a statement anew for the first ten times that a connection asks it."""
PARTS = ("memory", "added")
HEADLINE = (
    "ttft_added_ms_p50",
    "throughput_ratio",
    "ttft_added_idle_engine_ms_p50",
    "throughput_ratio_idle_engine",
    "ttft_added_ogx_ms_p50",
    "throughput_ratio_ogx",
    "mb_per_stream",
    "soak_mb_growth",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT)
    parser.add_argument("--rounds", type=int, default=8, help="of each number of streams")
    parser.add_argument("--idle-rounds", type=int, default=2, help="of each, on an engine that only waits")
    parser.add_argument("--streams", type=int, default=1000, help="at once, on the simulated engine")
    parser.add_argument("--soak-turns", type=int, default=100_000, help="16 at once, half of them streamed")
    parser.add_argument("--soak-s", type=float, default=3600.0, help="at most, its warm-up included")
    parser.add_argument("--only", choices=PARTS, help="a part of it")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everturn-bench-"))
    folder.chmod(0o711)
    say_load("before")
    found: dict[str, Any] = {}
    try:
        with EmbeddedPostgres(folder / "postgres") as server, running_service(folder, server) as service:
            if given.only in (None, "memory"):
                found |= said(soak_figures(service, turns=given.soak_turns, limit_s=given.soak_s))
                found |= said(stream_figures(service, given.streams))
            if given.only == "added":
                soak_figures(service, turns=WARM_UP_TURNS, limit_s=given.soak_s, warm_up=0)
            if given.only in (None, "added"):
                found |= time_figures(service, server, folder, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say_load("after")
    print("\n".join(rows(found)))
    print(json.dumps(last_line(found)))


def last_line(found: Mapping[str, Any]) -> dict[str, Any]:
    """Its headline first; null is what a part of the bench that was left out would have found."""
    return {name: found.get(name) for name in HEADLINE} | dict(found)


def time_figures(
    service: BenchService, server: EmbeddedPostgres, folder: Path, given: argparse.Namespace
) -> dict[str, Any]:
    with traced_service(folder, server) as traced:
        added = added_figures(
            service, traced, server, folder, model=given.model, streams=STREAMS, rounds=given.rounds
        )
        said(added.figures)
        # The real one has ended by now: none of its processes wants a core any more.
        idle = idle_figures(service, traced, added.pace, streams=STREAMS, rounds=given.idle_rounds)
    return added.figures | said(idle)


def said(figures: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(figures), flush=True)
    return figures


if __name__ == "__main__":
    main()
