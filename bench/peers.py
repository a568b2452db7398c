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
GUARD_REQUESTS = 300
WARM_UP = 20
SETTLE_S = 60.0
REST_S = 1.2
"""Longer than the second for which vLLM's processes spin after a step, on cores that the other engine needs."""


def measure_guard(forks: Zygote, folder: Path) -> dict[str, float]:
    """Milliseconds a request without a handle takes longer: with Everturn than with a connector that does nothing, and with that one
    than with none. Medians, alternating, on a model so small that a millisecond shows.
    """
    model = TinyModel().write(folder / "tiny")
    null = {
        "kv_connector": "NullConnector",
        "kv_connector_module_path": "bench.null_connector",
        "kv_role": "kv_both",
    }
    with (
        forks.engine(model, folder / "guard-kv") as ours,
        forks.engine(model, folder / "none", kv_transfer=null) as other,
    ):
        guard = _longer_ms(ours, other)
    with (
        forks.engine(model, folder / "none", kv_transfer=null) as other,
        forks.engine(model, folder / "none", bare=True) as bare,
    ):
        connector = _longer_ms(other, bare)
    print(
        f"a request without a handle: {guard:+.2f} ms by the guard, {connector:+.2f} ms by vLLM's own connector hooks"
    )
    return {"guard_overhead_ms": guard, "any_connector_ms": connector}


def _longer_ms(one: BenchEngine, other: BenchEngine) -> float:
    times: dict[str, list[float]] = {"one": [], "other": []}
    for number in range(GUARD_REQUESTS):
        pair = (("one", one), ("other", other))
        for name, engine in pair if number % 2 else reversed(pair):
            timed = engine.ask(prompt(number, 40, 250), max_tokens=2, params={}, settle=False)
            times[name].append(timed.total_s * 1000)
    return statistics.median(times["one"][WARM_UP:]) - statistics.median(times["other"][WARM_UP:])


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
