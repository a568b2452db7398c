"""The same turns by several ways to one engine, in short rounds that alternate, so that a busy machine slows all alike."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.api_load import Streamed, stream_chat, stream_response

ANSWER_TOKENS = 32
TURNS_OF_A_ROUND = 8
"""At least, over all its streams."""
DIRECT = "direct"

Round = tuple[float, Sequence[Streamed]]
"""How long it took, and what came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    name: str
    ask: Callable[[str], Awaitable[Streamed]]
    every: int = 1
    """So many rounds apart."""


def direct(url: str) -> Way:
    def ask(text: str) -> Awaitable[Streamed]:
        messages = [{"role": "user", "content": text}]
        asked = {"model": "bench", "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS}
        return stream_chat(url, asked)

    return Way(name=DIRECT, ask=ask)


def through(name: str, url: str, key: str, *, model: str | None = None, every: int = 1) -> Way:
    """Whoever serves /v1/responses."""
    extra = {} if model is None else {"model": model}

    def ask(text: str) -> Awaitable[Streamed]:
        return stream_response(url, key, turn(text) | extra)

    return Way(name=name, ask=ask, every=every)


def turn(text: str) -> dict[str, Any]:
    return {"input": text, "temperature": 0, "max_output_tokens": ANSWER_TOKENS}


async def alternate(ways: Sequence[Way], streams: int, rounds: int) -> dict[str, dict[int, Round]]:
    """By way and number of the round; the first of each way warms up, and is left out."""
    seen: dict[str, dict[int, Round]] = {way.name: {} for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            if number % way.every:
                continue
            took = await _round(way, number, streams, _each(streams) if number else 1)
            if number:
                seen[way.name][number] = took
    return seen


def turns_asked(streams: int, rounds: int) -> int:
    """Of each way that takes part in every round, those that warm up included."""
    return streams * (1 + rounds * _each(streams))


def _each(streams: int) -> int:
    return max(1, TURNS_OF_A_ROUND // streams)


def figures(seen: dict[str, dict[int, Round]]) -> dict[str, float]:
    """Of the direct way as they are, of each other what it adds to them: a `_NAME` behind those of any but the first."""
    plain = seen[DIRECT]
    first = {number: median(one.first_s for one in took[1]) for number, took in plain.items()}
    found = {
        "direct_ttft_ms_p50": round(
            median(one.first_s for took in plain.values() for one in took[1]) * 1000, 2
        ),
        "direct_tokens_per_s": round(_rate(plain), 1),
    }
    for place, (name, rounds) in enumerate(list(seen.items())[1:]):
        if not rounds:
            continue  # fewer were asked for than lie between two of its own
        behind = f"_{name}" if place else ""
        added = [median(one.first_s for one in took[1]) - first[number] for number, took in rounds.items()]
        found[f"ttft_added{behind}_ms_p50"] = round(median(added) * 1000, 2)
        found[f"throughput_ratio{behind}"] = round(_rate(rounds) / _rate(plain), 3)
    return found


def _rate(rounds: dict[int, Round]) -> float:
    return median(sum(one.tokens for one in seen) / wall for wall, seen in rounds.values())


async def _round(way: Way, number: int, streams: int, each: int) -> Round:
    async def one(place: int) -> list[Streamed]:
        # Words that no other request begins with: nobody finds KV of an earlier one.
        return [
            await way.ask(f"{place} {turn} {way.name} {number}: tell me a long story about a ship.")
            for turn in range(each)
        ]

    began = time.perf_counter()
    many = await asyncio.gather(*(one(place) for place in range(streams)))
    wall = time.perf_counter() - began
    seen = [each for some in many for each in some]
    if not all(one.ended for one in seen):
        raise SystemExit(f"{way.name}: a stream ended early")
    return wall, seen
