"""What the service adds where the engine has cores of its own: one that takes as long as the real one did, and hardly any CPU."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import psutil

from bench.api_compare import (
    ANSWER_TOKENS,
    DIRECT,
    Round,
    Way,
    alternate,
    direct,
    figures,
    through,
    turns_asked,
)
from bench.api_load import Streamed
from bench.api_service import BenchService, engine_process
from bench.api_steps import TracedService

SPREAD_TURNS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    first_s: float
    token_s: float

    @classmethod
    def of(cls, rounds: dict[int, Round]) -> Self:
        seen = [one for _, took in rounds.values() for one in took]
        return cls(median(one.first_s for one in seen), median(one.token_s for one in seen))

    @property
    def turn_s(self) -> float:
        return self.first_s + (ANSWER_TOKENS - 1) * self.token_s


def idle_figures(
    service: BenchService, traced: TracedService, pace: Pace, *, streams: Sequence[int], rounds: int
) -> dict[str, Any]:
    levels: dict[str, dict[str, float]] = {}
    with (
        engine_process("bench.api_paced_engine", pace.first_s, pace.token_s) as told,
        service.engine(told),
    ):
        engine = psutil.Process(told["pid"])
        ways = (direct(told["address"]), through("ours", service.url, service.tenant_key))
        for many in streams:
            with _spent(engine, service, turns_asked(many, rounds)) as cpu:
                seen = asyncio.run(alternate(ways, many, rounds))
            found = figures(seen)
            kept = found["direct_tokens_per_s"] * pace.turn_s / (many * ANSWER_TOKENS)
            levels[str(many)] = found | {"pace_kept": round(kept, 3)} | cpu
            print(f"idle engine, {many} streams at once: {json.dumps(levels[str(many)])}", flush=True)
        spread = asyncio.run(_spread(ways, streams[-1], pace.turn_s))
        print(f"idle engine, {streams[-1]} streams spread: {json.dumps(spread)}", flush=True)
        steps = traced.steps_ms()
    return {
        "ttft_added_idle_engine_ms_p50": levels[str(streams[0])]["ttft_added_ms_p50"],
        "throughput_ratio_idle_engine": levels[str(streams[-1])]["throughput_ratio"],
        "idle_engine_ms": [round(pace.first_s * 1000, 1), round(pace.token_s * 1000, 1)],
        "by_streams_idle_engine": levels,
        "spread_idle_engine": spread,
        "steps_idle_engine_ms": steps,
    }


async def _spread(ways: Sequence[Way], streams: int, turn_s: float) -> dict[str, float]:
    """As many streams, but not begun at one moment: what people do who do not wait for each other. Each has a few turns."""

    async def one(way: Way, place: int) -> list[Streamed]:
        await asyncio.sleep(place * turn_s / streams)
        return [await way.ask(f"{place} {number} {way.name}, spread") for number in range(SPREAD_TURNS)]

    seen = {}
    for way in ways:
        many = await asyncio.gather(*(one(way, place) for place in range(streams)))
        seen[way.name] = [each for some in many for each in some]
    plain, ours = seen[DIRECT], seen[ways[-1].name]
    first = [median(each.first_s for each in one) for one in (plain, ours)]
    whole = [sum(each.total_s for each in one) for one in (plain, ours)]
    return {
        "ttft_added_ms_p50": round((first[1] - first[0]) * 1000, 2),
        "throughput_ratio": round(whole[0] / whole[1], 3),
    }


@contextmanager
def _spent(engine: psutil.Process, service: BenchService, turns: int) -> Iterator[dict[str, float]]:
    """CPU of a turn: of the engine, which was asked for it by either way, and of the service."""
    cpu: dict[str, float] = {}
    began = _cpu_s(engine), service.cpu_s
    yield cpu
    cpu["engine_cpu_ms_per_turn"] = round((_cpu_s(engine) - began[0]) / (2 * turns) * 1000, 2)
    cpu["service_cpu_ms_per_turn"] = round((service.cpu_s - began[1]) / turns * 1000, 2)


def _cpu_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)
