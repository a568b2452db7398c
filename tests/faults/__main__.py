"""`make faults`: seeded faults on real processes, one after the other; the last line is one JSON object, and the status 1 where anything is wrong."""

import argparse
import json
import signal
import sys
import time
from collections import Counter

from tests.chaos.checks import Broken, feed_differs
from tests.chaos.client import Outcome, connect
from tests.faults.life import Run, live
from tests.faults.plan import of_seed
from tests.faults.rig import fleet, scratch

SEEDS = 300
SAY_EVERY = 10
MOST_IDLE = 0.25
"""Of the seeds: those whose place no turn came by, and that so show nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    # What was started is stopped also where this is told to end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    runs: list[Run] = []
    began = time.monotonic()
    with scratch() as folder, fleet(folder) as made:
        client = connect(made.base.url, made.base.secrets.tenant)
        for number, seed in enumerate(range(given.first, given.first + given.seeds), 1):
            run = live(made, client, seed, of_seed(seed))
            runs.append(run)
            tell(run, number, given.seeds, time.monotonic() - began)
        with made.base.database.connect() as conn:
            feed = [*feed_differs(conn)]
    for violation in feed:
        say(f"VIOLATION at the end, {violation.kind}: {violation.what}")
    found = summary(runs) | {"feed": len(feed), "seconds": round(time.monotonic() - began)}
    say(json.dumps(found))
    idle = sum(run.struck is None for run in runs)
    if idle > MOST_IDLE * len(runs):
        say(
            f"{idle} of {len(runs)} seeds broke nothing: the places in tests/faults/plan.py are not where turns pass"
        )
    return 1 if found["violations"] or feed or idle > MOST_IDLE * len(runs) else 0


def tell(run: Run, number: int, seeds: int, seconds: float) -> None:
    for violation in run.violations:
        say(f"VIOLATION {violation.kind}: seed {run.seed}, {run.fault}, at {run.struck}: {violation.what}")
    if run.violations:
        say(f"again: {run.how_to_rerun}")
    if number % SAY_EVERY == 0 or run.violations:
        say(f"{number} of {seeds} seeds, {seconds:.0f} s; the last: {run.fault}")


def summary(runs: list[Run]) -> dict[str, object]:
    told = [exchange.told[-1].outcome for run in runs for exchange in run.exchanges]
    broken = Counter(violation.kind.value for run in runs for violation in run.violations)
    return {
        "seeds": len(runs),
        "struck": sum(run.struck is not None for run in runs),
        "faults": dict(sorted(Counter(f"{r.fault.deed} {r.fault.victim}" for r in runs if r.struck).items())),
        "answered": told.count(Outcome.ANSWERED),
        "told_failed": told.count(Outcome.FAILED),
        "unknown": told.count(Outcome.UNKNOWN),
        **{kind.value: broken[kind.value] for kind in Broken},
        "violations": sum(broken.values()),
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
