"""`make chaos`: a turn is killed at every message between service and PostgreSQL, and the record is checked after each kill.

The faults are enumerated from a turn that goes well; see tests/chaos. The last line is one JSON object.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.checks import Broken, feed_differs, violations
from tests.chaos.client import connect
from tests.chaos.faults import choose
from tests.chaos.rig import Rig, rig
from tests.chaos.sweep import Run, Tally, sweep, trace

RUNS = 500
SAY_EVERY = 25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everturn-chaos-"))
    folder.chmod(0o711)
    try:
        with rig(folder) as made:
            found = figures(made, given.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))
    return 1 if any(found[kind.value] for kind in Broken) else 0


def figures(made: Rig, runs: int) -> dict[str, object]:
    began = time.monotonic()
    client = connect(made.url, made.secrets.tenant)
    passed = trace(made, client)
    print(f"a turn is {len(passed)} messages between service and database", flush=True)
    chosen = choose(passed, runs)
    seen: list[Run] = []

    def said(run: Run) -> None:
        seen.append(run)
        for violation in run.violations:
            print(
                f"VIOLATION {violation.kind}: {run.kind} {run.moment} {run.at}: {violation.what}", flush=True
            )
        if len(seen) % SAY_EVERY == 0:
            print(f"{len(seen)} of {runs} runs, {time.monotonic() - began:.0f} s", flush=True)

    tally = sweep(made, client, chosen, said)
    broken = tally.broken()
    with made.database.connect() as conn:
        for violation in [*violations(conn, tally.exchanges(), made.engine), *feed_differs(conn)]:
            print(f"VIOLATION at the end, {violation.kind}: {violation.what}", flush=True)
            broken[violation.kind.value] += 1
    client.close()
    return report(tally, broken, len(passed)) | {
        "restart_api_s": round(statistics.median(made.restarts["api"]), 2),
        "restart_postgres_s": round(statistics.median(made.restarts["postgres"] or [0.0]), 2),
        "seconds": round(time.monotonic() - began),
    }


def report(tally: Tally, broken: Counter[str], messages: int) -> dict[str, object]:
    reached = tally.reached
    return {
        "runs": len(reached),
        "not_reached": len(tally.runs) - len(reached),
        "faults": dict(Counter(run.kind.value for run in reached)),
        "messages": messages,
        "messages_broken_at": len({run.at.number for run in reached if run.at}),
        "acknowledged": tally.acknowledged(),
        "told_unknown_at_first": tally.unknown_at_first(),
        "told_failed": tally.failed(),
    } | {kind.value: broken[kind.value] for kind in Broken}


if __name__ == "__main__":
    sys.exit(main())
