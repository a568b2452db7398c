"""`make chaos`: a turn, a tool call and a rebuild, broken at every message between a process and PostgreSQL; the record is checked each time.

The faults are enumerated from one that goes well: see tests/chaos. The last line is one JSON object; status 1 where anything is wrong.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checks import Broken, feed_differs, violations
from tests.chaos.client import connect
from tests.chaos.faults import OF_A_REBUILD, OF_A_TURN, choose
from tests.chaos.rig import Rig, rebuilding_rig, rig
from tests.chaos.sweep import A_TURN, Run, Tally, a_rebuild, sweep, trace
from tests.chaos.tool_loop import calling, sweep_loops, trace_loop

TURNS = 500
LOOPS = 300
REBUILDS = 200
SAY_EVERY = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    name: str
    tally: Tally
    messages: int
    broken: Counter[str]
    restarts: dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="to break at messages of the service")
    parser.add_argument(
        "--loops", type=int, default=LOOPS, help="of a tool, to break at messages of the service"
    )
    parser.add_argument("--rebuilds", type=int, default=REBUILDS, help="to break at messages of the worker")
    given = parser.parse_args()
    # What was started is stopped also where this is told to end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    began = time.monotonic()
    parts = []
    with scratch() as folder, rig(folder) as made:
        parts.append(swept("turn", made, given.turns))
    with scratch() as folder, rig(folder) as made:
        calling(made)
        parts.append(swept("loop", made, given.loops))
    with scratch() as folder, rebuilding_rig(folder) as made:
        parts.append(swept("rebuild", made, given.rebuilds))
    found = report(parts) | {"seconds": round(time.monotonic() - began)}
    print(json.dumps(found))
    return 1 if any(found[kind.value] for kind in Broken) else 0


def swept(name: str, made: Rig, runs: int) -> Swept:
    scenario = a_rebuild(made) if name == "rebuild" else A_TURN
    client = connect(made.url, made.secrets.tenant)
    passed = trace_loop(made, client) if name == "loop" else trace(made, client, scenario)
    print(f"a {name} is {len(passed)} messages between its process and the database", flush=True)
    began = time.monotonic()
    seen: list[Run] = []

    def said(run: Run) -> None:
        seen.append(run)
        for violation in run.violations:
            print(
                f"VIOLATION {violation.kind}: {run.kind} {run.moment} {run.at}: {violation.what}", flush=True
            )
        if len(seen) % SAY_EVERY == 0:
            print(f"{name}: {len(seen)} of {runs} runs, {time.monotonic() - began:.0f} s", flush=True)

    faults = choose(passed, runs, OF_A_REBUILD if name == "rebuild" else OF_A_TURN)
    if name == "loop":
        tally = sweep_loops(made, client, faults, said)
    else:
        tally = sweep(made, client, faults, said, scenario)
    client.close()
    broken = tally.broken()
    with made.database.connect() as conn:
        for violation in [*violations(conn, tally.exchanges(), made.engines), *feed_differs(conn)]:
            print(f"VIOLATION at the end, {violation.kind}: {violation.what}", flush=True)
            broken[violation.kind.value] += 1
    return Swept(name=name, tally=tally, messages=len(passed), broken=broken, restarts=made.restarts)


def report(parts: list[Swept]) -> dict[str, object]:
    reached = [run for part in parts for run in part.tally.reached]
    broken = sum((part.broken for part in parts), Counter[str]())
    restarts = {
        f"restart_{what}_s": [took for part in parts for took in part.restarts[what]]
        for what in ("api", "postgres")
    }
    return {
        "runs": len(reached),
        "not_reached": sum(len(part.tally.runs) for part in parts) - len(reached),
        "faults": dict(Counter(run.kind.value for run in reached)),
        "messages": {part.name: part.messages for part in parts},
        "messages_broken_at": {
            part.name: len({run.at.number for run in part.tally.reached if run.at}) for part in parts
        },
        "acknowledged": sum(part.tally.acknowledged() for part in parts),
        "told_failed": sum(part.tally.failed() for part in parts),
        "told_nothing_in_three_tries": sum(part.tally.unknown_at_first() for part in parts),
        **{kind.value: broken[kind.value] for kind in Broken},
        **{name: round(statistics.median(took or [0.0]), 2) for name, took in restarts.items()},
    }


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everturn-chaos-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
