"""`make bench-rollout`: people talk while the fleet moves from v12 to v13, on real vLLM; the last line is one JSON object.

Once with warm-up and once without, beside two baselines in the same run: stored KV reused by its name, and all text sent again. Then the parts by themselves:
rebuilds through Celery, the doorbell, and the service on an engine that takes no time.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.break_even import measure_break_even
from bench.rollout_checks import check, naive_wrong
from bench.rollout_fleet import BenchFleet, bench_fleet
from bench.rollout_load import Crowd, Guest, Phase, Resender, report
from bench.rollout_rebuilds import measure_doorbell, measure_rebuild_ratio
from bench.rollout_service import measure_overhead, measure_rate, print_profile, simulated_engine
from bench.store import say_load
from demo.control import unguarded_engine

PEOPLE = 4
TURNS_BEFORE, TURNS_AFTER = 5, 3
"""Of each, the first one among them; their think time is part of the load."""
HOLD_S = 4
WARM_TOKENS_PER_S = 80
"""Both engines share the processors, as those of a fleet do not: a fifth of what one of them can prefill leaves the other its time."""
LONG_ROUNDS = 4
STEP_S = 0.1
PATIENCE_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoints", type=Path, default=Path(".everturn/checkpoints"), help="with v12 and v13"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="(default: all)")
    given = parser.parse_args()
    v12, v13 = (given.checkpoints.absolute() / name for name in ("v12", "v13"))
    if not all((model / "config.json").is_file() for model in (v12, v13)):
        why = "has no v12 and v13: `python -m demo.checkpoints` makes them"
        print(f"--checkpoints '{given.checkpoints}' {why}", file=sys.stderr)
        return 2
    say_load("before the first measurement")
    began = time.monotonic()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="everturn-bench-") as text:
        folder = Path(text)
        folder.chmod(0o711)
        with bench_fleet(folder, v12, v13) as fleet:
            for part in PARTS:
                if part in given.only:
                    found |= PARTS[part](fleet, folder)
    say_load("after the last measurement")
    print(f"{time.monotonic() - began:.0f} s")
    print(json.dumps(found))
    return 1 if any(found.get(name) for name in ("failed", "wrong", "doubled")) else 0


def measure_load(fleet: BenchFleet, _: Path) -> dict[str, Any]:
    warm, cold, resent = rolled(fleet, "warm", PEOPLE), rolled(fleet, "cold", 0), resend(fleet)
    ratios = {
        name: p95_ratio(name, crowd) for name, crowd in (("warm", warm), ("cold", cold), ("resent", resent))
    }
    said = [*warm.said(), *cold.said()]
    checked = check(fleet, said)
    model = fleet.v13.model
    with unguarded_engine(fleet.deployment, model, ["--no-enable-prefix-caching"]) as naive:
        wrong, tried = naive_wrong(fleet, naive, said, checked.cold)
    print(f"KV reused by its name: {wrong} of {tried} answers are wrong, each with status 200", flush=True)
    return {
        "failed": checked.failed,
        "wrong": checked.wrong,
        "doubled": checked.doubled,
        "turns": len(said),
        "baseline_naive_wrong": wrong,
        "baseline_naive_tried": tried,
        **{f"p95_ratio_{name}": ratio for name, ratio in ratios.items()},
    }


def measure_rebuilds(fleet: BenchFleet, _: Path) -> dict[str, Any]:
    return {
        "rebuild_ratio": round(measure_rebuild_ratio(fleet, LONG_ROUNDS), 3),
        "break_even_tokens": measure_break_even(fleet),
    }


def measure_workers(fleet: BenchFleet, _: Path) -> dict[str, Any]:
    doorbell, takeover = measure_doorbell(fleet)
    print(
        f"doorbell: p50 {statistics.median(doorbell):.1f} ms, worst of {len(doorbell)} {max(doorbell):.1f} ms"
    )
    print(f"after its worker was killed: taken up again within {max(takeover):.1f} s", flush=True)
    return {
        "doorbell_p50_ms": round(statistics.median(doorbell), 2),
        "takeover_worst_s": round(max(takeover), 2),
    }


def measure_service(fleet: BenchFleet, folder: Path) -> dict[str, Any]:
    for engine in (fleet.v12, fleet.v13):
        fleet.deployment.release(engine.process)
    with simulated_engine(fleet.deployment) as simulated:
        overhead = measure_overhead(fleet, simulated)
        rate = measure_rate(fleet, simulated)
        print_profile(fleet, folder)
    return {
        "overhead_p50_ms": round(overhead, 2),
        "turns_per_s": round(rate.turns_per_s, 1),
        "service_cpu_ms": round(rate.service_cpu_ms, 2),
    }


PARTS: Mapping[str, Callable[[BenchFleet, Path], dict[str, Any]]] = {
    "load": measure_load,
    "rebuilds": measure_rebuilds,
    "workers": measure_workers,
    "service": measure_service,
}
"""In this order: the last one stops the engines, so that nothing else takes the processors."""


def rolled(fleet: BenchFleet, name: str, warm: int) -> Crowd:
    """People of one alias, before, during and after its way from v12 to v13."""
    alias = f"bench-{name}"
    fleet.point(alias, fleet.v12)
    url, key = fleet.deployment.url, fleet.deployment.keys.tenant_key
    first = 0 if warm else PEOPLE
    crowd = Crowd([Guest(number=first + n, url=url, key=key, alias=alias) for n in range(PEOPLE)], seed=name)
    with crowd.talking():
        crowd.wait_for_turns(TURNS_BEFORE)
        crowd.phase = Phase.DURING
        wanted = {
            "alias": alias,
            "to": fleet.v13.revision,
            "warm": warm,
            "warm_tokens_per_s": WARM_TOKENS_PER_S,
            "shift": [50, 100],
            "hold_s": [HOLD_S, 0],
        }
        started = fleet.deployment.admin("POST", "/rollouts", wanted | {"drain": "never", "reason": "bench"})
        until(
            lambda: state(fleet, str(started["rollout"])) == "done", f"rollout {started['rollout']} is done"
        )
        crowd.wait_for_all(fleet.v13.revision)
        crowd.phase = Phase.AFTER
        crowd.wait_for_turns(TURNS_AFTER)
    return crowd


def resend(fleet: BenchFleet) -> Crowd:
    """The same people with all their text, on the engines themselves."""
    serves = [fleet.v12.address]
    crowd = Crowd([Resender(number=2 * PEOPLE + n, address=serves) for n in range(PEOPLE)], seed="resent")
    with crowd.talking():
        crowd.wait_for_turns(TURNS_BEFORE)
        crowd.phase = Phase.DURING
        serves.append(fleet.v13.address)
        crowd.wait_for_all(fleet.v13.address)
        crowd.phase = Phase.AFTER
        crowd.wait_for_turns(TURNS_AFTER)
    return crowd


def p95_ratio(name: str, crowd: Crowd) -> float:
    """During the rollout over before it."""
    found = report(name, crowd.settled())
    return round(found[Phase.DURING][1] / found[Phase.BEFORE][1], 2)


def state(fleet: BenchFleet, rollout: str) -> str:
    found = fleet.deployment.admin("GET", f"/rollouts/{rollout}")
    if found["state"] not in ("planned", "warming", "shifting", "draining", "done"):
        raise SystemExit(f"rollout {rollout} is {found['state']}: {found}")
    return str(found["state"])


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(STEP_S)


if __name__ == "__main__":
    sys.exit(main())
