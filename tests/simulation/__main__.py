"""`python -m tests.simulation`: many seeds, or one with all that happens in it; the last line is one JSON object."""

import argparse
import faulthandler
import gc
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context

from tests.simulation.run import Verdict, run_seed
from tests.simulation.substitution import simulated

SAY_EVERY_S = 5.0
SEEDS_AT_A_TIME = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes side by side; each seed is the same in any (default: as many as cores)",
    )
    given = parser.parse_args()
    # A run is gone as a whole: to look for its cycles all the time takes a twentieth of it.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    if given.seed is not None:
        return report([given.seed], trace=given.trace)
    jobs = 1 if given.trace else given.jobs
    return report(range(given.first, given.first + given.seeds), jobs=jobs, trace=given.trace)


def report(seeds: "range | list[int]", *, jobs: int = 1, trace: bool = False) -> int:
    began = said = time.perf_counter()
    happened, plans, failing = Counter[str](), Counter[str](), list[int]()
    answered = failed = commits = 0
    for number, verdict in enumerate(_verdicts(seeds, jobs, trace=trace), 1):
        happened += verdict.happened
        plans += verdict.plans
        answered, failed, commits = (
            answered + verdict.answered,
            failed + verdict.failed,
            commits + verdict.commits,
        )
        if verdict.violations:
            failing.append(verdict.seed)
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
        "cpu_ms_per_seed": round(1000 * _cpu_s() / len(seeds), 1),
    }
    _print(json.dumps(found))
    return 1 if failing else 0


def _cpu_s() -> float:
    """Of this process and of its jobs, which have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _verdicts(seeds: "range | list[int]", jobs: int, *, trace: bool) -> Iterator[Verdict]:
    if jobs == 1:
        with simulated():
            for seed in seeds:
                yield _run(seed, trace=trace)
        return
    with get_context("fork").Pool(jobs, initializer=_begin) as pool:
        yield from pool.imap(_alone, seeds, chunksize=SEEDS_AT_A_TIME)


_kept = ExitStack()


def _begin() -> None:
    """In the life of this process there is nothing but simulations."""
    _kept.enter_context(simulated())


def _alone(seed: int) -> Verdict:
    return replace(_run(seed, trace=False), met=frozenset(), crashed=frozenset())


def _run(seed: int, *, trace: bool) -> Verdict:
    """One that hangs ends the process, and says where."""
    faulthandler.dump_traceback_later(30, exit=True)
    verdict = run_seed(seed, trace=_print if trace else None)
    faulthandler.cancel_dump_traceback_later()
    return verdict


def show(verdict: Verdict) -> None:
    for violation in verdict.violations:
        _print(f"seed {verdict.seed}: {violation}")
    _print(f"seed {verdict.seed} again: {verdict.how_to_rerun}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
