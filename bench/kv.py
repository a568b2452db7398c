"""What stored KV gains and what the guard costs: `make bench-kv`. Everything is measured in this one run; the last line is JSON."""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.engine import BenchEngine, zygote
from bench.peers import HITS, measure_guard, measure_peers
from bench.prompts import TURN, prompt
from bench.storage import measure_hashing, measure_storage

LENGTHS = (512, 1024, 2048, 4032)
"""Tokens of history; what an engine of 4,096 has room for last."""
COLDS = 3
DECODED = 64
DECODE_ROUNDS = 3


def measure_hits(engine: BenchEngine, lengths: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """Median times to first token of the same prompt: computed from nothing, on its history's stored KV, and where that KV
    is in the engine's memory already, which no store can be quicker than.
    """
    found = {}
    engine.ask(prompt("warm up", 600), publish=new_handle())
    for length in lengths:
        history, turn = prompt(("history", length), length), prompt("turn", TURN)
        handle = new_handle()
        published = engine.ask(history, publish=handle).evidence["published"]
        if published is None:
            raise SystemExit(f"nothing was published at {length} tokens")
        cold = [engine.ask(history + turn).first_token_s for _ in range(COLDS)]
        hits = [engine.ask(history + turn, offer=handle) for _ in range(HITS)]
        engine.ask(history, salt="resident")
        resident = [
            engine.ask(history + prompt(("turn", number), TURN), salt="resident", settle=False)
            for number in range(HITS)
        ]
        loads = [hit.evidence["loaded"] for hit in hits]
        if any(load is None for load in loads):
            raise SystemExit(f"a hit was refused: {hits[0].evidence['refusal']}")
        found[length] = {
            "cold_s": statistics.median(cold),
            "hit_s": statistics.median(hit.first_token_s for hit in hits),
            "best_hit_s": min(hit.first_token_s for hit in hits),
            "resident_s": statistics.median(one.first_token_s for one in resident),
            "load_s": statistics.median(load["seconds"] for load in loads),
            "mb": loads[0]["bytes"] / 1e6,
        }
        report_hit(length, found[length])
    return found


def report_hit(length: int, times: dict[str, float]) -> None:
    speedup = times["cold_s"] / times["hit_s"]
    print(
        f"{length:5} tokens: cold {times['cold_s']:.3f} s, hit {times['hit_s']:.3f} s (best {times['best_hit_s']:.3f} s, "
        f"load {times['load_s']:.3f} s of {times['mb']:.0f} MB), {speedup:.1f} times; "
        f"{times['cold_s'] / times['resident_s']:.1f} times, if it took no time to load",
        flush=True,
    )


def slope_ms_per_1k(found: dict[int, dict[str, float]], name: str) -> float:
    first, last = min(found), max(found)
    return (found[last][name] - found[first][name]) / (last - first) * 1e6


def measure_saving(engine: BenchEngine) -> float:
    """Decode throughput of turns that save their KV against turns that do not, alternating; nothing waits for a save."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(DECODE_ROUNDS):
        for saving in (False, True) if number % 2 else (True, False):
            tokens = seconds = 0.0
            for turn in range(3):
                ids = prompt(("decode", number, saving, turn), 256)
                handle = new_handle() if saving else None
                timed = engine.ask(ids, max_tokens=DECODED, publish=handle, settle=False)
                tokens += len(timed.tokens) - 1
                seconds += timed.total_s - timed.first_token_s
            rates[saving].append(tokens / seconds)
    print(
        f"decode: {statistics.median(rates[True]):.1f} tokens/s saving, {statistics.median(rates[False]):.1f} not"
    )
    return statistics.median(rates[True]) / statistics.median(rates[False])


def new_handle() -> str:
    return f"kv_{secrets.token_hex(8)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(".everturn/checkpoints/v12"))
    parser.add_argument("--quick", action="store_true", help="2,048 tokens only, and no other connector")
    given = parser.parse_args()
    if not (given.model / "config.json").is_file():
        print(
            f"--model '{given.model}' is no checkpoint: `python -m demo.checkpoints` makes it",
            file=sys.stderr,
        )
        return 2
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first measurement")
    with tempfile.TemporaryDirectory(prefix="everturn-bench-") as text:
        print(json.dumps(measured(given.model.absolute(), Path(text), quick=given.quick)))
    return 0


def measured(model: Path, folder: Path, *, quick: bool) -> dict[str, Any]:
    storage, hashing = measure_storage(folder), measure_hashing(model, folder)
    print(json.dumps(asdict(storage) | asdict(hashing)), flush=True)
    with zygote(folder) as forks:
        with forks.engine(model, folder / "kv") as engine:
            found = measure_hits(engine, (2048,) if quick else LENGTHS)
            saving = measure_saving(engine)
        guard = measure_guard(forks, folder)
        peers = {} if quick else measure_peers(forks, model, folder, found[2048]["hit_s"])
    if len(found) > 1:
        for name in ("cold_s", "load_s", "hit_s"):
            print(f"slope of {name}: {slope_ms_per_1k(found, name):.0f} ms per 1,000 tokens")
    print(f"load {os.getloadavg()[0]:.1f} after the last measurement")
    return {
        "hit_speedup_2k": round(found[2048]["cold_s"] / found[2048]["hit_s"], 2),
        "load_bandwidth_ratio": round(storage.load_bandwidth_ratio, 3),
        "save_bandwidth_ratio": round(storage.save_bandwidth_ratio, 3),
        "guard_overhead_ms": round(guard["guard_overhead_ms"], 3),
        "decode_ratio_saving": round(saving, 3),
        "hash_ratio": round(hashing.hash_ratio, 3),
        "hit_limit_2k": round(found[2048]["cold_s"] / found[2048]["resident_s"], 2),
        "guard_overhead_turn_ms": round(guard["guard_overhead_turn_ms"], 3),
        "any_connector_ms": round(guard["any_connector_ms"], 3),
        "cached_start_ms": round(hashing.cached_start_ms, 2),
        **{name: round(ratio, 3) for name, ratio in peers.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
