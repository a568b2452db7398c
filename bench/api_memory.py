"""What open streams weigh, and whether the service's memory grows over very many turns, on a simulated engine."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median, quantiles
from typing import Any

from bench.api_load import Streamed, ask, stream_response
from bench.api_service import BenchService, engine_process

PAUSE_S = 4.0
"""Between words of the streams that are counted by memory: the first must not have ended when the last begins."""
BEGUN_PER_S = 60
SOAKERS = 16
TURNS_OF_ONE = 8
STREAMED_EVERY = 2
PER_TURNS = 100_000
WARM_UP_TURNS = 5000
"""Before memory is looked at: until then the service fills its pools, and PostgreSQL's connections their plans."""
FEWEST_TURNS = 5000
"""Of a soak, for its growth to say anything."""
SAMPLE_S = 1.0
AT_AN_END = 10
"""Samples whose median is what the service weighs at the beginning, or at the end."""


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


@dataclass(slots=True, kw_only=True)
class Soak:
    """Turns of several soakers, on conversations of a few turns each, and what the service weighed meanwhile."""

    turns: int
    """That it is to make."""
    until: float
    """On the monotonic clock: none begins after that."""
    begun: int = 0
    made: int = 0
    streamed: int = 0
    samples: list[tuple[int, float]] = field(default_factory=list)
    """How many were made, and megabytes."""
    took_s: float = 0.0
    cpu_s: float = 0.0

    async def run(self, service: BenchService) -> None:
        """Raises: SystemExit: a turn was not answered as it should be."""
        began, spent = time.monotonic(), service.cpu_s
        self.samples.append((0, service.rss_mb))
        soakers = [asyncio.create_task(self._soaker(service, number)) for number in range(SOAKERS)]
        going: Collection[asyncio.Task[None]] = soakers
        while going:
            done, going = await asyncio.wait(going, timeout=SAMPLE_S, return_when=asyncio.FIRST_EXCEPTION)
            for one in done:
                one.result()
            self.samples.append((self.made, service.rss_mb))
        self.took_s, self.cpu_s = time.monotonic() - began, service.cpu_s - spent

    @property
    def mb_growth(self) -> float | None:
        """Between the ends of it all, as it was measured."""
        if self.made < FEWEST_TURNS:
            return None
        return round(_weight(self.samples[-AT_AN_END:]) - _weight(self.samples[:AT_AN_END]), 1)

    def figures(self) -> dict[str, Any]:
        """Raises: SystemExit: not even one was made."""
        if not self.made:
            raise SystemExit("the soak's time was over before its warm-up: give it more, with --soak-s")
        return {
            "soak_turns": self.made,
            "soak_turns_asked": self.turns,
            "soak_streamed": self.streamed,
            "soak_s": round(self.took_s),
            "soak_turns_per_s": round(self.made / self.took_s, 1),
            "service_cpu_ms_per_turn": round(self.cpu_s / self.made * 1000, 1),
            "soak_mb_growth": self.mb_growth,
            "soak_mb_most": round(max(mb for _, mb in self.samples) - _weight(self.samples[:AT_AN_END]), 1),
            "soak_mb_slope": round(_slope(self.samples) * PER_TURNS, 1),
            "service_mb": round(_weight(self.samples[-AT_AN_END:]), 1),
        }

    async def _soaker(self, service: BenchService, number: int) -> None:
        previous = ""
        for said in count():
            if self.begun == self.turns or time.monotonic() >= self.until:
                return
            self.begun += 1
            body = {"input": f"{number} says {said}"}
            if said % TURNS_OF_ONE:
                body["previous_response_id"] = previous
            if said % STREAMED_EVERY:
                streamed = await stream_response(service.url, service.tenant_key, body)
                if not streamed.ended:
                    raise SystemExit("a stream of the soak ended early")
                previous = streamed.id
                self.streamed += 1
            else:
                previous = (await ask(service.url, "/v1/responses", service.tenant_key, body))["id"]
            self.made += 1


def soak_figures(
    service: BenchService, *, turns: int, limit_s: float, warm_up: int = WARM_UP_TURNS
) -> dict[str, Any]:
    """So many turns, after those of the warm-up; fewer where all of it would take longer than `limit_s`, which is said then.

    Raises: SystemExit: not even one; or a turn was not answered as it should be.
    """
    with engine_process("bench.api_engine", 0) as told, service.engine(told):
        until = time.monotonic() + limit_s
        soak = Soak(turns=turns, until=until)
        asyncio.run(Soak(turns=warm_up, until=until).run(service))
        asyncio.run(soak.run(service))
    if soak.made < turns:
        print(f"the soak was ended after {limit_s:.0f} s: {soak.made:,} of {turns:,} turns", flush=True)
    return soak.figures() | {"soak_warm_up_turns": warm_up}


def _weight(samples: Sequence[tuple[int, float]]) -> float:
    return median(mb for _, mb in samples)


def _slope(samples: Sequence[tuple[int, float]]) -> float:
    """Megabytes a turn, by least squares."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
