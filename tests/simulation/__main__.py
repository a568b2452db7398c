"""`python -m tests.simulation`: many seeds, or one with all that happens in it; the last line is one JSON object."""

import argparse
import faulthandler
import json
import sys
import time
from collections import Counter

from tests.simulation.run import Verdict, run_seed
from tests.simulation.substitution import simulated

SAY_EVERY_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    with simulated():
        return report(seeds, trace=given.trace)


def report(seeds: "range | list[int]", *, trace: bool) -> int:
    began = said = time.perf_counter()
    happened, plans, failing = Counter[str](), Counter[str](), list[int]()
    answered = failed = commits = 0
    for number, seed in enumerate(seeds, 1):
        faulthandler.dump_traceback_later(30, exit=True)
        verdict = run_seed(seed, trace=_print if trace else None)
        faulthandler.cancel_dump_traceback_later()
        happened += verdict.happened
        plans += verdict.plans
        answered, failed, commits = (
            answered + verdict.answered,
            failed + verdict.failed,
            commits + verdict.commits,
        )
        if verdict.violations:
            failing.append(seed)
            show(verdict)
        if time.perf_counter() - said > SAY_EVERY_S:
            said = time.perf_counter()
            _print(f"{number} of {len(seeds)} seeds, {len(failing)} failed, {said - began:.0f} s")
    seconds = time.perf_counter() - began
    found = {
        "seeds": len(seeds),
        "failing": failing[:20],
        "failed": len(failing),
        "answered": answered,
        "turns_failed": failed,
        "commits": commits,
        "turns": dict(sorted(plans.items())),
        "faults": dict(sorted(happened.items())),
        "seconds": round(seconds, 1),
        "seeds_per_minute": round(60 * len(seeds) / seconds),
    }
    _print(json.dumps(found))
    return 1 if failing else 0


def show(verdict: Verdict) -> None:
    for violation in verdict.violations:
        _print(f"seed {verdict.seed}: {violation}")
    _print(f"seed {verdict.seed} again: {verdict.how_to_rerun}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
