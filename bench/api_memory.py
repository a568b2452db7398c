"""What open streams weigh, and whether the service's memory grows over very many turns, on a simulated engine."""

import asyncio
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from bench.api_load import Streamed, ask, stream_response
from bench.api_service import BenchService, engine_process

PAUSE_S = 4.0
"""Between words of the streams that are counted by memory: the first must not have ended when the last begins."""
BEGUN_PER_S = 60
SOAKERS = 16
TURNS_OF_ONE = 8
PER_TURNS = 100_000
FEWEST_TURNS = 5000
"""Of a soak, for its growth to say anything."""


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

    with engine_process("bench.api_engine", PAUSE_S) as told, service.engine(told):
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

    with engine_process("bench.api_engine", 0) as told, service.engine(told):
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
