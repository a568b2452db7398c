"""The same engine with other connectors: vLLM's own example, its file-system tier, one that does nothing, and none."""

import secrets
import statistics
import time
from pathlib import Path

from bench.engine import BenchEngine, Zygote
from bench.prompts import TURN, prompt
from tests.engines.checkpoints import TinyModel
from tests.workers.kv_connector.test_foreign_tiers import tier

HITS = 15
TIER_HISTORIES = 4
"""A history can be read from disk once in an engine's life; then it lies in memory."""
TIER_BYTES = 1 << 30
GUARD_PAIRS = 5
GUARD_BURSTS = 6
GUARD_BURST = 30
WARM_UP = 5
SETTLE_S = 60.0
REST_S = 1.2
"""Longer than the second for which vLLM's processes spin after a step, on cores that the other engine needs."""


def measure_guard(forks: Zygote, folder: Path) -> dict[str, float]:
    """Milliseconds a request without a handle takes longer: with Everturn than with a connector that does nothing, also as a turn of the
    service, of which evidence is kept; and with that connector than with none. Medians over pairs of engines, since each starts with
    memory of its own, on a model so small that a millisecond shows.
    """
    model = TinyModel().write(folder / "tiny")
    null = {
        "kv_connector": "NullConnector",
        "kv_connector_module_path": "bench.null_connector",
        "kv_role": "kv_both",
    }
    guard, turn, connector = list[float](), list[float](), list[float]()
    for _ in range(GUARD_PAIRS):
        with (
            forks.engine(model, folder / "guard-kv") as ours,
            forks.engine(model, folder / "none", kv_transfer=null) as other,
        ):
            guard.append(_longer_ms(ours, other))
            turn.append(_longer_ms(ours, other, as_turns=True))
        with (
            forks.engine(model, folder / "none", kv_transfer=null) as other,
            forks.engine(model, folder / "none", bare=True) as bare,
        ):
            connector.append(_longer_ms(other, bare))
    print(
        f"a request without a handle: by the guard {_told(guard)} ms, as a turn {_told(turn)} ms, by any connector {_told(connector)} ms"
    )
    return {
        "guard_overhead_ms": statistics.median(guard),
        "guard_overhead_turn_ms": statistics.median(turn),
        "any_connector_ms": statistics.median(connector),
    }


def _told(pairs: list[float]) -> str:
    return ", ".join(f"{longer_ms:+.2f}" for longer_ms in pairs)


def _longer_ms(one: BenchEngine, other: BenchEngine, *, as_turns: bool = False) -> float:
    """By bursts, each when the other engine has come to rest: one that still spins takes a core from the one that is asked."""
    times: dict[int, list[float]] = {0: [], 1: []}
    for burst in range(GUARD_BURSTS):
        pair = [(0, one), (1, other)]
        for which, engine in pair if burst % 2 else reversed(pair):
            time.sleep(REST_S)
            asked = [
                engine.ask(
                    prompt((burst, number, as_turns), 40, 250),
                    max_tokens=2,
                    params=None if as_turns else {},
                    settle=False,
                )
                for number in range(GUARD_BURST)
            ]
            times[which] += [timed.total_s * 1000 for timed in asked[WARM_UP:]]
    return statistics.median(times[0]) - statistics.median(times[1])


def measure_peers(forks: Zygote, model: Path, folder: Path, hit_s: float) -> dict[str, float]:
    """Other connectors' time to first token of 2,048 tokens of stored history and a turn, over Everturn's.

    The example's is compared turn about; `hit_s` is what the tier's, which reads each history once, is compared with.
    """
    return {
        "example_hit_ratio_2k": _example(forks, model, folder),
        "tier_hit_ratio_2k": _tier(forks, model, folder) / hit_s,
    }


def _example(forks: Zygote, model: Path, folder: Path) -> float:
    config = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
    }
    history, turn = prompt(("history", 2048), 2048), prompt("turn", TURN)
    handle = f"kv_{secrets.token_hex(8)}"
    theirs, ours = [], []
    with (
        forks.engine(model, folder / "none", kv_transfer=config) as example,
        forks.engine(model, folder / "example-kv") as everturn,
    ):
        example.ask(history, params={})
        everturn.ask(history, publish=handle)
        for _ in range(HITS):
            time.sleep(REST_S)
            theirs.append(example.ask(history + turn, params={}).first_token_s)
            time.sleep(REST_S)
            ours.append(everturn.ask(history + turn, offer=handle).first_token_s)
    print(
        f"a hit of 2,048 tokens, turn about: {statistics.median(ours):.3f} s, example connector "
        f"{statistics.median(theirs):.3f} s"
    )
    return statistics.median(theirs) / statistics.median(ours)


def _tier(forks: Zygote, model: Path, folder: Path) -> float:
    """Written by one engine and read by the next one, since the first has it in memory."""
    config = tier(folder / "tier")
    config["kv_connector_extra_config"]["cpu_bytes_to_use"] = TIER_BYTES
    histories = [prompt(("history", 2048, number), 2048) for number in range(TIER_HISTORIES)]
    turn = prompt("turn", TURN)
    with forks.engine(model, folder / "none", kv_transfer=config) as engine:
        for history in histories:
            engine.ask(history, params={}, salt="tier")
        _wait_for_files(folder / "tier", TIER_HISTORIES * 2048 // 32)
    with forks.engine(model, folder / "none", kv_transfer=config) as engine:
        engine.ask(prompt("warm up", 600), params={}, salt="other")
        times = [engine.ask(h + turn, params={}, salt="tier").first_token_s for h in histories]
    return statistics.median(times)


def _wait_for_files(folder: Path, count: int) -> None:
    deadline = time.monotonic() + SETTLE_S
    while len(list(folder.rglob("*.bin"))) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"the file-system tier wrote fewer than {count} blocks in {SETTLE_S:.0f} s")
        time.sleep(0.2)
