"""From how many tokens on a rebuild is worth its way over the queue: the same turns through a rebuild, and prefilled where they are decoded."""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from signal import Signals

import httpx

from bench.rollout_fleet import BenchFleet
from bench.rollout_rebuilds import Talk, long_talk
from stack.ports import find_free_port
from workers.child import Child, Program

WORDS_OF = (40, 160, 640)
"""System prompts of so many words, and so some 70, 240 and 930 tokens of history."""
ROUNDS = 3
WORTH = 0.1
"""Of what the prefill takes: the way over the queue may add as much, for a prefill that is shared, shows how far it is, can be gone on
with and does not hold up those who decode."""
START_S = 90.0


def measure_break_even(fleet: BenchFleet) -> int:
    """Tokens from which the queue adds no more than a tenth to the prefill; 0 where it never does."""
    spot, queue, sizes = dict[int, list[float]](), dict[int, list[float]](), dict[int, int]()
    with (
        service(fleet, rebuild_min_tokens=1) as always,
        service(fleet, rebuild_min_tokens=1_000_000) as never,
    ):
        for words in WORDS_OF:
            for number in range(ROUNDS):
                for url, plan, took in ((always, "rebuild", queue), (never, "cold", spot))[
                    :: 1 if number % 2 else -1
                ]:
                    sizes[words], seconds = turn_s(fleet, f"{words}-{number}-{plan}", words, url, plan)
                    took.setdefault(words, []).append(seconds)
            print(
                f"{sizes[words]} tokens: {statistics.median(queue[words]):.3f} s through a rebuild, "
                f"{statistics.median(spot[words]):.3f} s on the spot",
                flush=True,
            )
    return crossing(sizes, queue, spot)


def crossing(
    sizes: Mapping[int, int], queue: Mapping[int, list[float]], spot: Mapping[int, list[float]]
) -> int:
    """Both sides as straight lines over the tokens."""
    tokens = [sizes[words] for words in sizes]
    added = statistics.linear_regression(
        tokens, [statistics.median(queue[w]) - statistics.median(spot[w]) for w in sizes]
    )
    alone = statistics.linear_regression(tokens, [statistics.median(spot[w]) for w in sizes])
    per_token = WORTH * alone.slope - added.slope
    print(
        f"the queue adds {added.intercept * 1000:.0f} ms and {added.slope * 1e6:.0f} ms for 1,000 tokens, "
        f"of which the prefill takes {alone.slope * 1e6:.0f} ms"
    )
    if per_token <= 0:
        return 0
    return max(0, round((added.intercept - WORTH * alone.intercept) / per_token))


def turn_s(fleet: BenchFleet, seed: str, words: int, url: str, plan: str) -> tuple[int, float]:
    """Tokens of the history, and seconds that the first turn after the upgrade takes for one token."""
    alias = f"bench-{seed}"
    fleet.point(alias, fleet.v12)
    talk: Talk = long_talk(fleet, alias, seed, words)
    turn = talk.ask("What of it?", 1)
    tokens = len(fleet.auditor.prompt(turn["id"])) + len(fleet.auditor.output(turn["id"]))
    fleet.point(alias, fleet.v13)
    there = replace(talk, url=url)
    began = time.monotonic()
    answer = there.ask("And then?", 1)
    seconds = time.monotonic() - began
    if answer["kv"]["plan"] != plan:
        raise SystemExit(f"the turn was to be planned as {plan}: {answer['kv']}")
    return tokens, seconds


@contextmanager
def service(fleet: BenchFleet, *, rebuild_min_tokens: int) -> Iterator[str]:
    """A further process of the API, with that setting."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"EVERTURN_PORT": str(port), "EVERTURN_REBUILD_MIN_TOKENS": str(rebuild_min_tokens)}
    program = Program(
        name="API",
        argv=[sys.executable, "-m", "service"],
        env={**os.environ, **fleet.deployment.settings(), **settings},
        log=fleet.deployment.logs / f"api-{rebuild_min_tokens}.log",
        stop=((Signals.SIGTERM, 15.0),),
    )
    child = Child.start(program)
    try:
        deadline = time.monotonic() + START_S
        while not is_up(url):
            if time.monotonic() > deadline or child.ended():
                raise SystemExit(f"the API did not come up: {child.last_words()}")
            time.sleep(0.1)
        yield url
    finally:
        child.stop()


def is_up(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", trust_env=False).is_success
    return False
