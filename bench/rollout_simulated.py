"""100,000 simulated conversations through one rollout: every answer against a cold prefill, and time and queues as they move.

The product's own loops and decisions on a virtual clock (tests/simulation). The last line is one JSON object; status 1 where an answer is wrong.
"""

import argparse
import asyncio
import csv
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import quantiles

from bench.timeline_svg import Line, Panel, svg
from service import rollout_command_flow
from service.domain.events import FLEET, ConversationId, KvRefused, KvSource, TurnCompleted, TurnFailed
from service.domain.rollout_events import Drain, RolloutId, Share, Strategy
from service.store.rebuilds import RebuildState
from tests.simulation import clock
from tests.simulation.actors import Ask
from tests.simulation.checks import conversation_violations, fleet_violations
from tests.simulation.faults import Rates
from tests.simulation.scenario import PATIENT, Scenario, of_seed
from tests.simulation.substitution import simulated
from tests.simulation.world import World, fresh_loop

CONVERSATIONS = 100_000
A_SECOND = 100
"""Turns that begin in each second of virtual time."""
SECOND = 1.0
SHIFT = ((10, 0.2), (50, 0.3), (100, 0.1))
"""Percent of conversations, and for what share of the second half at least."""
SAY_EVERY = 30
Say = Callable[[str], None]


def silent(_line: str) -> None:
    """For who wants the result alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    conversations: int
    turns_a_second: float
    rollout: bool = True
    """One that begins in the middle: half of all turns come before it."""

    @property
    def seconds(self) -> float:
        """Of virtual time, in which they begin."""
        return 2 * self.conversations / self.turns_a_second


@dataclass(slots=True)
class Seen:
    """Of one second of virtual time."""

    waiting: int = 0
    """Turns that are open."""
    queued: int = 0
    running: int = 0
    """Rebuilds."""
    percent: int = 0
    """Of conversations, on the new revision by the rollout's step."""
    seconds: list[float] = field(default_factory=list)
    """That each turn took which ended here."""
    sources: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Result:
    answered: int = 0
    failed: int = 0
    wrong: int = 0
    refused: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    timeline: list[Seen] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    virtual_s: float = 0.0


def scenario_of(load: Load) -> Scenario:
    half = load.seconds / 2
    return replace(
        of_seed(0),
        conversations=0,
        engines=4,
        prefill=0,
        long=0.0,
        truncated=0.0,
        apis=2,
        pool=24,
        terms=0.0,
        tools=0.0,
        cancelled=0.0,
        policies=(None,),
        tokenizer="letters",
        max_model_len=100_000,
        token_s=0.01,
        kv_kept=40_000,
        rates=Rates(),
        storms=0.0,
        faults_until_s=0.0,
        strategy=Strategy(
            warm=load.conversations // 100,
            warm_tokens_per_s=None,
            shift=tuple(Share(percent=to, hold_s=int(half * share)) for to, share in SHIFT),
            drain=Drain.UNPINNED,
            limits=PATIENT,
        ),
    )


def roll(load: Load, *, seed: int = 1, say: Say = silent) -> Result:
    """Within `simulated()`."""
    loop = fresh_loop(seed)
    world = World(loop, scenario_of(load))
    result = Result()
    try:
        loop.run_until_complete(_run(world, load, result, Random(seed), say))  # noqa: S311 the same each time
        result.virtual_s = loop.time()
        _judge(world, result)
        world.close()
    finally:
        loop.close()
    return result


async def _run(world: World, load: Load, result: Result, random: Random, say: Say) -> None:
    world.start()
    await asyncio.sleep(5)
    sampling = asyncio.create_task(_sample(world, result, say))
    rolling = asyncio.create_task(_roll(world, load))
    chats = [asyncio.create_task(_chat(world, load, result, n, random)) for n in range(load.conversations)]
    await asyncio.wait(chats)
    while not world.quiet():  # noqa: ASYNC110 of virtual time
        await asyncio.sleep(1)
    await rolling
    world.settled = True
    sampling.cancel()


async def _chat(world: World, load: Load, result: Result, number: int, random: Random) -> None:
    began = clock.monotonic()
    half = load.seconds / 2
    api = world.apis[number % len(world.apis)]
    first, second = random.random() * half, half + random.random() * half
    await asyncio.sleep(first)
    conversation = await api.create()
    for turn, at in enumerate((first, second)):
        await asyncio.sleep(max(0.0, began + at - clock.monotonic()))
        asked = clock.monotonic()
        stored = await api.respond(
            Ask(conversation=conversation, key=f"k{number}.{turn}", text=f"question {number} of turn {turn}")
        )
        seen = result.timeline[-1]
        seen.seconds.append(clock.monotonic() - asked)
        if stored.turn.completed is not None:
            seen.sources[stored.turn.completed.kv_source] += 1


async def _roll(world: World, load: Load) -> None:
    await asyncio.sleep(load.seconds / 2)
    wanted = rollout_command_flow.Wanted(
        alias="production",
        source=None,
        target=world.revisions[1],
        strategy=world.scenario.strategy,
        reason="v13",
    )
    await world.apis[0].database.run(
        lambda conn: rollout_command_flow.start(conn, wanted, RolloutId("ro_1"), by="op", now=clock.utc_now())
    )


async def _sample(world: World, result: Result, say: Say) -> None:
    tables = world.server.tables
    while True:
        states = Counter(tables.rebuilds[name].seen.state for name in tables.unfinished)
        rollout = tables.rollouts.get(RolloutId("ro_1"))
        result.timeline.append(
            Seen(
                waiting=len(tables.open_turns),
                queued=states[RebuildState.QUEUED],
                running=states[RebuildState.RUNNING],
                percent=0 if rollout is None else rollout.rollout.percent,
            )
        )
        if len(result.timeline) % SAY_EVERY == 0:
            say(f"second {len(result.timeline)}: {len(tables.completed)} turns answered")
        await asyncio.sleep(SECOND)


def _judge(world: World, result: Result) -> None:
    """By the checks of the simulation, of each conversation."""
    for (tenant, stream), rows in world.server.tables.events.items():
        if tenant == FLEET:
            continue
        for row in rows:
            match row.event:
                case TurnCompleted():
                    result.answered += 1
                    result.sources[row.event.kv_source] += 1
                case TurnFailed():
                    result.failed += 1
                case KvRefused():
                    result.refused += 1
                case _:
                    pass
        found = [*conversation_violations(world, ConversationId(stream), [])]
        result.wrong += sum("cold prefill" in one for one in found)
        result.violations += found
    result.violations += [*fleet_violations(world)]


def summary(load: Load, result: Result, seconds: float) -> dict[str, object]:
    began = int(load.seconds / 2)
    before, during = result.timeline[:began], result.timeline[began:]
    return {
        "conversations": load.conversations,
        "turns": result.answered + result.failed,
        "wrong": result.wrong,
        "failed": result.failed,
        "violations": len(result.violations),
        "refused": result.refused,
        "kv": dict(sorted(result.sources.items())),
        "p95_before_s": p95([took for seen in before for took in seen.seconds]),
        "p95_during_s": p95([took for seen in during for took in seen.seconds]),
        "most_rebuilds_queued": max((seen.queued for seen in result.timeline), default=0),
        "virtual_s": round(result.virtual_s),
        "seconds": round(seconds),
    }


def p95(values: Sequence[float]) -> float:
    return round(quantiles(values, n=20)[-1], 3) if len(values) > 1 else 0.0


def write_csv(result: Result, path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["second", "percent", "open", "queued", "running", "turns", "p95_s", "rebuilt"])
        for second, seen in enumerate(result.timeline):
            rebuilt = seen.sources[KvSource.REBUILT]
            counts = (seen.percent, seen.waiting, seen.queued, seen.running, len(seen.seconds))
            rows.writerow([second, *counts, p95(seen.seconds), rebuilt])


def drawn(result: Result) -> str:
    of = result.timeline
    return svg(
        "A rollout in simulated time, by the second",
        [
            Panel(
                title="conversations on v13 by the rollout, percent",
                lines=[Line("", [s.percent for s in of])],
            ),
            Panel(title="turn, p95, seconds", lines=[Line("", [p95(s.seconds) for s in of])]),
            Panel(
                title="rebuilds",
                lines=[Line("queued", [s.queued for s in of]), Line("running", [s.running for s in of])],
            ),
            Panel(title="turns open", lines=[Line("", [s.waiting for s in of])]),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rollout_simulated", description=__doc__)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--turns-a-second", type=float, default=A_SECOND, help="of virtual time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="where to write what happened in each second")
    parser.add_argument("--svg", type=Path, help="where to draw it")
    given = parser.parse_args()
    load, began = (
        Load(conversations=given.conversations, turns_a_second=given.turns_a_second),
        time.monotonic(),
    )
    # Hardly anything that is let go of is a cycle, and what is kept grows: looking through it takes a tenth of the time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    with simulated():
        result = roll(load, seed=given.seed, say=lambda line: print(line, file=sys.stderr, flush=True))
    for violation in result.violations[:20]:
        print(f"VIOLATION {violation}")
    if given.csv is not None:
        write_csv(result, given.csv)
    if given.svg is not None:
        given.svg.write_text(drawn(result))
    print(json.dumps(summary(load, result, time.monotonic() - began)))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
