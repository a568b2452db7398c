"""Where the time of a turn up to its first text goes, step by step, from what `bench.api_traced` noted."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.api_compare import turn
from bench.api_load import Streamed, stream_response
from bench.api_service import BenchService, running_service
from stack.postgres import EmbeddedPostgres

FILE = "EVERTURN_BENCH_TRACE"
"""Names the file for `bench.api_traced`."""

TURNS = 20
WARM_UP = 40
"""PostgreSQL plans a statement anew for the first ten times that a connection asks it, and the service has several connections."""
ANSWER_TOKENS = 2

STEPS = (
    ("arrived", "connection, request, uvicorn"),
    ("look asked", "routing, up to the key"),
    ("look begun", "key: connection of the pool"),
    ("look done", "key: its statement"),
    ("transaction asked", "body read and checked"),
    ("transaction begun", "acceptance: connection of the pool, BEGIN"),
    ("transaction done", "acceptance and plan: statements"),
    ("transaction committed", "acceptance: COMMIT"),
    ("attempt", "task of the turn"),
    ("generate asked", "render: what COMMIT did not cover; request to generate built"),
    ("generate answered", "generate: the engine, until headers"),
    ("text", "generate: the engine, until its first text"),
    ("written", "event of the stream made and written"),
    ("seen", "client"),
)
"""Each by the moment that it ends at, in their order."""

BESIDE = "render, most of it while COMMIT is under way"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedService:
    service: BenchService
    trace: Path
    """Where it notes its turns; emptied before each measure."""

    def steps_ms(self) -> dict[str, float]:
        """Medians over turns one after the other."""
        self.trace.write_text("")
        seen = asyncio.run(_turns(self.service))
        marks = {line[0][1]: line for line in map(json.loads, self.trace.read_text().splitlines())}
        # An answer may be without a text, and then there is no step up to it.
        each = [
            _durations([*marks[one.began], ("seen", one.began + one.first_s)])
            for one in seen[WARM_UP:]
            if one.began in marks
        ]
        if not each:
            raise SystemExit("no turn was traced up to its first text")
        medians = {
            name: round(median(one[place] for one in each) * 1000, 2) for place, (_, name) in enumerate(STEPS)
        }
        beside = median(_between(line, "render asked", "rendered") for line in marks.values())
        return medians | {
            "all": round(median(sum(one) for one in each) * 1000, 2),
            BESIDE: round(beside * 1000, 2),
        }


@contextmanager
def traced_service(folder: Path, server: EmbeddedPostgres) -> Iterator[TracedService]:
    """A second one on the same database: the clocks are in none that anything else is measured on."""
    trace = folder / "steps.jsonl"
    with running_service(folder, server, module="bench.api_traced", env={FILE: str(trace)}) as service:
        yield TracedService(service=service, trace=trace)


async def _turns(service: BenchService) -> list[Streamed]:
    return [
        await stream_response(
            service.url,
            service.tenant_key,
            turn(f"{number} traced: tell me a long story about a ship.")
            | {"max_output_tokens": ANSWER_TOKENS},
            traced=True,
        )
        for number in range(WARM_UP + TURNS)
    ]


def _between(marks: Iterable[Sequence[str | float]], first: str, last: str) -> float:
    at = {str(name): float(moment) for name, moment in marks}
    return at[last] - at[first]


def _durations(marks: Iterable[Sequence[str | float]]) -> list[float]:
    """Seconds of each step; moments that are none of these steps' are passed over."""
    left = iter(marks)
    moments = [
        next(float(at) for name, at in left if name == wanted)
        for wanted in ("began", *(end for end, _ in STEPS))
    ]
    return [end - start for start, end in pairwise(moments)]
