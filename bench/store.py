"""`make bench-store`: what the store costs against bare psycopg and its peers, how it grows, and how fast the audit answers.

All figures of one run are of one server; contenders take turns in short rounds, so that a busy machine slows all alike.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from bench.store_append import append_figures
from bench.store_audit import audit_figures
from bench.store_growth import growth_figures
from bench.store_peers import peer_figures
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres

HEADLINE = (
    "append_ratio_16",
    "append_p50_ratio_1",
    "langgraph_size_ratio_200",
    "bytes_per_token",
    "plan_time_ratio_1000_vs_10",
    "slowest_audit_s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=320, help="of a round, over all writers")
    parser.add_argument("--events", type=int, default=1_000_000, help="that the audit is asked about")
    parser.add_argument("--no-peers", action="store_true", help="leave out eventsourcing and langgraph")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everturn-bench-"))
    folder.chmod(0o711)
    say_load("before")
    try:
        with EmbeddedPostgres(folder / "postgres") as server:
            upgrade(server.url())
            found = append_figures(server, given.rounds, given.turns)
            found |= growth_figures(server)
            if not given.no_peers:
                found |= peer_figures(server, given.rounds)
            found |= audit_figures(server, given.events)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say_load("after")
    print(json.dumps({name: found.get(name) for name in HEADLINE} | found))


def say_load(when: str) -> None:
    """Figures of a machine that does other work say little but their ratios."""
    one, five, _ = os.getloadavg()
    print(f"{os.cpu_count()} cores, load average {when}: {one:.1f}, {five:.1f} over five minutes", flush=True)


if __name__ == "__main__":
    main()
