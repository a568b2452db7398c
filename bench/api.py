"""`make bench-api`: what the service adds to a vLLM engine, what a stream weighs, and whether memory stays flat.

With and without the service take turns in short rounds on one engine, so that a busy machine slows both alike.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.api_load import Streamed, ask, stream_chat, stream_response
from bench.api_service import BenchService, running_service, simulated_engine
from bench.engine import BenchEngine, zygote
from bench.store import say_load
from stack.postgres import EmbeddedPostgres

STREAMS = (1, 8, 32)
ANSWER_TOKENS = 32
CHECKPOINT = Path(".everturn/checkpoints/v12")
PAUSE_S = 4.0
"""Between words of the streams that are counted by memory: the first must not have ended when the last begins."""
BEGUN_PER_S = 60
SOAKERS = 16
TURNS_OF_ONE = 8
PER_TURNS = 100_000
FEWEST_TURNS = 5000
"""Of a soak, for its growth to say anything."""
HEADLINE = ("ttft_added_ms_p50", "throughput_ratio", "mb_per_stream", "soak_mb_growth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT)
    parser.add_argument("--rounds", type=int, default=8, help="of each number of streams")
    parser.add_argument("--streams", type=int, default=1000, help="at once, on the simulated engine")
    parser.add_argument("--soak-s", type=float, default=600.0, help="of turns, 16 at once")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everturn-bench-"))
    folder.chmod(0o711)
    say_load("before")
    found: dict[str, Any] = {}
    try:
        with EmbeddedPostgres(folder / "postgres") as server, running_service(folder, server) as service:
            found |= said(soak_figures(service, given.soak_s))
            found |= said(stream_figures(service, given.streams))
            found |= added_figures(service, folder, given.model, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say_load("after")
    print(json.dumps({name: found.get(name) for name in HEADLINE} | found))


def said(figures: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(figures), flush=True)
    return figures


def added_figures(service: BenchService, folder: Path, model: Path, rounds: int) -> dict[str, Any]:
    levels: dict[str, dict[str, float]] = {}
    with zygote(folder) as mother, mother.engine(model, folder / "kv") as engine:
        identity = engine.http.get(f"{engine.url}/everturn/identity").raise_for_status().json()
        with service.engine(identity | {"address": engine.url}):
            for streams in STREAMS:
                levels[str(streams)] = asyncio.run(_compared(service, engine, streams, rounds))
                print(f"{streams} streams: {json.dumps(levels[str(streams)])}", flush=True)
    return {
        "ttft_added_ms_p50": levels["1"]["ttft_added_ms_p50"],
        "throughput_ratio": levels[str(STREAMS[-1])]["throughput_ratio"],
        "by_streams": levels,
    }


async def _compared(
    service: BenchService, engine: BenchEngine, streams: int, rounds: int
) -> dict[str, float]:
    direct, ours = list[list[Streamed]](), list[list[Streamed]]()
    walls: dict[str, list[float]] = {"direct": [], "ours": []}
    each = max(1, 8 // streams)
    for number in range(rounds + 1):
        for name, kept, ask_one in (
            ("direct", direct, lambda text: stream_chat(engine.url, _chat(text))),
            ("ours", ours, lambda text: stream_response(service.url, service.tenant_key, _turn(text))),
        ):
            wall, seen = await _round(ask_one, f"{name} {number}", streams, each)
            if not all(one.ended for one in seen):
                raise SystemExit(f"{name}: a stream ended early")
            if number:  # the first of each warms up
                walls[name].append(sum(one.tokens for one in seen) / wall)
                kept.append(seen)
    first = [median(one.first_s for seen in kept for one in seen) for kept in (direct, ours)]
    paired = [
        median(one.first_s for one in mine) - median(one.first_s for one in theirs)
        for mine, theirs in zip(ours, direct, strict=True)
    ]
    return {
        "direct_ttft_ms_p50": round(first[0] * 1000, 2),
        "ttft_added_ms_p50": round(median(paired) * 1000, 2),
        "direct_tokens_per_s": round(median(walls["direct"]), 1),
        "throughput_ratio": round(median(walls["ours"]) / median(walls["direct"]), 3),
    }


async def _round(
    ask_one: Callable[[str], Awaitable[Streamed]], name: str, streams: int, each: int
) -> tuple[float, Sequence[Streamed]]:
    async def one(place: int) -> list[Streamed]:
        # Words that no other request begins with: nobody finds KV of an earlier one.
        return [
            await ask_one(f"{place} {turn} {name}: tell me a long story about a ship.")
            for turn in range(each)
        ]

    began = time.perf_counter()
    seen = await asyncio.gather(*(one(place) for place in range(streams)))
    return time.perf_counter() - began, [each for many in seen for each in many]


def _turn(text: str) -> dict[str, Any]:
    return {"input": text, "temperature": 0, "max_output_tokens": ANSWER_TOKENS}


def _chat(text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "bench", "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS}


def stream_figures(service: BenchService, streams: int) -> dict[str, Any]:
    """Memory while all of them wait for words, and how long the longest waits between two were beyond the engine's own pause."""

    async def one(number: int) -> Streamed:
        await asyncio.sleep(number / BEGUN_PER_S)
        return await stream_response(service.url, service.tenant_key, {"input": f"stream {number}"})

    async def run() -> tuple[float, float, list[Streamed]]:
        before = most = service.rss_mb
        asked = [asyncio.create_task(one(number)) for number in range(streams)]
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.25)
            most = max(most, service.rss_mb)
        return before, most, [task.result() for task in asked]

    with simulated_engine(PAUSE_S) as told, service.engine(told):
        before, most, seen = asyncio.run(run())
    whole = [each for each in seen if each.ended]
    gaps = [gap for each in whole for gap in each.gaps_s]
    at_once = max(sum(a.began <= b.began < a.began + a.total_s for a in whole) for b in whole)
    return {
        "streams": streams,
        "streams_at_once": at_once,
        "streams_broken": streams - len(whole),
        "mb_per_stream": round((most - before) / streams, 3),
        "gap_s_p99": round(quantiles(gaps, n=100)[98], 3),
        "gap_s_of_engine": PAUSE_S,
        "stream_ttft_s_p50": round(median(each.first_s for each in whole), 3),
    }


def soak_figures(service: BenchService, seconds: float) -> dict[str, Any]:
    """Turns for so long, on conversations of a few turns each; memory after each second."""
    turns, samples = 0, list[tuple[int, float]]()
    until = time.monotonic() + seconds

    async def soaker(number: int) -> None:
        nonlocal turns
        previous: str | None = None
        said = 0
        while time.monotonic() < until:
            body: dict[str, Any] = {"input": f"{number} says {said}"}
            if previous is not None and said % TURNS_OF_ONE:
                body["previous_response_id"] = previous
            previous = (await ask(service.url, "/v1/responses", service.tenant_key, body))["id"]
            said, turns = said + 1, turns + 1

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(1)
            samples.append((turns, service.rss_mb))

    async def run() -> None:
        await asyncio.gather(watch(), *(soaker(number) for number in range(SOAKERS)))

    with simulated_engine(0) as told, service.engine(told):
        began_s = service.cpu_s
        asyncio.run(run())
        spent_s = service.cpu_s - began_s
    steady = samples[len(samples) // 3 :]
    return {
        "soak_turns": turns,
        "soak_turns_per_s": round(turns / seconds, 1),
        "service_cpu_ms_per_turn": round(spent_s / turns * 1000, 1),
        "soak_mb_growth": round(_slope(steady) * PER_TURNS, 1) if turns >= FEWEST_TURNS else None,
        "soak_mb_grown": round(steady[-1][1] - steady[0][1], 1),
        "service_mb": round(samples[-1][1], 1),
    }


def _slope(samples: Sequence[tuple[int, float]]) -> float:
    """Megabytes a turn, by least squares."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


if __name__ == "__main__":
    main()
