"""Where the time of a hit on stored KV goes, stage by stage, on real vLLM: `python -m bench.hit_profile [--model FOLDER]`."""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.engine import BenchEngine, zygote
from bench.prompts import TURN, prompt

FOLDER = "trace"
"""Where `bench.traced_connector` notes its moments, in the engine's run folder."""

LENGTH = 2048
HITS = 15

STAGES = (
    ("sent", "arrived", "client, HTTP and vLLM's front, until the scheduler has the request"),
    ("arrived", "matched", "weights looked at, blocks hashed, manifest read, admitted"),
    ("matched", "load began", "a step without work takes the load to the worker"),
    ("load began", "load ended", "read, check and copy"),
    ("load ended", "planned", "the scheduler learns of it, and plans the turn"),
    ("planned", "computed", "forward pass of the turn's 16 tokens"),
    ("computed", "first token", "sampling, vLLM's front, HTTP, client"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(".everturn/checkpoints/v12"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everturn-profile-") as text:
        folder = Path(text)
        with (
            zygote(folder) as forks,
            forks.engine(given.model.absolute(), folder / "kv", traced=True) as engine,
        ):
            asked = ask(engine)
        report(asked, folder)
    return 0


def ask(engine: BenchEngine) -> list[tuple[int, int]]:
    """When each hit was sent, and when its first token was there, in ns."""
    handle, history, turn = f"kv_{secrets.token_hex(8)}", prompt("profile", LENGTH), prompt("turn", TURN)
    engine.ask(prompt("warm up", 600), publish=f"kv_{secrets.token_hex(8)}")
    engine.ask(history, publish=handle)
    asked = []
    for _ in range(HITS):
        sent = time.monotonic_ns()
        timed = engine.ask(history + turn, offer=handle)
        if timed.evidence["loaded"] is None:
            raise SystemExit(f"a hit was refused: {timed.evidence['refusal']}")
        asked.append((sent, sent + round(timed.first_token_s * 1e9)))
    return asked


def report(asked: list[tuple[int, int]], folder: Path) -> None:
    moments = sorted(_moments(folder))
    hits = [_times(moments, sent, first) for sent, first in asked]
    whole = statistics.median(first - sent for sent, first in asked) / 1e6
    print(
        f"a hit of {LENGTH} tokens: {whole:.1f} ms, median of {len(hits)}; load average {os.getloadavg()[0]:.1f}"
    )
    found = {}
    for begins, ends, words in STAGES:
        took = statistics.median(hit[ends] - hit[begins] for hit in hits) / 1e6
        found[f"{begins} - {ends}"] = round(took, 1)
        print(f"{took:7.1f} ms {took / whole:5.0%}  {words}")
    spent = [
        dict(part.split("=") for part in what.split()[1:]) for _, what in moments if what.startswith("spent")
    ]
    cpu = {name: round(statistics.median(int(one[name]) for one in spent) / 1e6, 1) for name in spent[0]}
    print(
        f"CPU time of a load: {cpu['all']} ms, of which "
        + ", ".join(f"{n} {ms}" for n, ms in cpu.items() if n != "all")
    )
    print(json.dumps({"hit_ms": round(whole, 1), "stages_ms": found, "load_cpu_ms": cpu}))


def _moments(folder: Path) -> Iterator[tuple[int, str]]:
    for path in folder.glob(f"*/**/{FOLDER}/*"):
        for line in path.read_text().splitlines():
            at, _, what = line.partition(" ")
            yield int(at), what


def _times(moments: list[tuple[int, str]], sent: int, first: int) -> dict[str, int]:
    """Of one hit: the first of each kind after the one before it."""
    times = {"sent": sent, "first token": first}
    after = sent
    for what in ("arrived", "matched", "load began", "load ended", "planned", "computed"):
        times[what] = after = next(at for at, kind in moments if at > after and kind == what)
    return times


if __name__ == "__main__":
    sys.exit(main())
