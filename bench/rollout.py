"""`make bench-rollout`: people talk while the fleet moves from v12 to v13, on real vLLM; the last line is one JSON object.

Once with warm-up and once without, beside two baselines in the same run (stored KV reused by its name, and all text sent again) and two controls (what the other engine's
prefills cost by themselves, and what p95 does where nothing happens). Then the parts by themselves: rebuilds through Celery, the doorbell, and the service on an engine
that takes no time.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.break_even import measure_break_even
from bench.rollout_checks import check, naive_wrong
from bench.rollout_fleet import BenchFleet, bench_fleet
from bench.rollout_floor import prefilling
from bench.rollout_load import Crowd, Guest, Phase, Resender, Said, p95, report
from bench.rollout_rebuilds import measure_doorbell, measure_rebuild_ratio
from bench.rollout_service import measure_overhead, measure_rate, print_profile, simulated_engine
from bench.store import say_load
from demo.control import unguarded_engine

PEOPLE = 6
"""Who moves, once each, must be no twentieth of the turns whose p95 is in question."""
TURNS_BEFORE, TURNS_AFTER = 4, 2
"""Of each, the first one among them; their think time is part of the load."""
STEADY_TURNS = 14
"""Before the rollout whose p95 is in question: a twentieth of them has to be several."""
FLOOR_TURNS = 25
"""While the other engine prefills: as many as there are while it is warmed."""
HOLD_S = 4
WARM_TOKENS_PER_S = 80
"""Both engines share the processors, as those of a fleet do not: a fifth of what one of them can prefill leaves the other its time."""
LONG_ROUNDS = 4
STEP_S = 0.1
PATIENCE_S = 480.0


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
    warm = rolled(fleet, "warm", warm=PEOPLE, first=0, before=STEADY_TURNS)
    beside = talk_beside_prefills(fleet, first=PEOPLE, before=TURNS_BEFORE)
    cold = rolled(fleet, "cold", warm=0, first=2 * PEOPLE, before=TURNS_BEFORE)
    resent = resend(fleet)
    steady = of(warm, Phase.BEFORE)
    ratios = {
        "warm": ratio(of(warm, Phase.DURING), steady),
        "floor": ratio(of(beside, Phase.DURING), steady),
        "noise": ratio(*halves(steady)),
        "cold": ratio(of(cold, Phase.DURING), of(cold, Phase.BEFORE)),
        "resent": ratio(of(resent, Phase.DURING), of(resent, Phase.BEFORE)),
    }
    said = [*warm.said(), *beside.said(), *cold.said()]
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


def guests(fleet: BenchFleet, alias: str, first: int) -> Crowd:
    """Of an alias that points at v12. Their numbers give their instructions, which no two crowds may share the KV of."""
    fleet.point(alias, fleet.v12)
    url, key = fleet.deployment.url, fleet.deployment.keys.tenant_key
    people = [Guest(number=first + n, url=url, key=key, alias=alias) for n in range(PEOPLE)]
    return Crowd(people)


def rolled(fleet: BenchFleet, name: str, *, warm: int, first: int, before: int) -> Crowd:
    """People of one alias, before, during and after its way from v12 to v13."""
    alias = f"bench-{name}"
    crowd = guests(fleet, alias, first)
    with crowd.talking():
        crowd.wait_for_turns(before)
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
    report(name, crowd.settled())
    say_moves(name, crowd, fleet.v13.revision)
    return crowd


def talk_beside_prefills(fleet: BenchFleet, *, first: int, before: int) -> Crowd:
    """People who stay on v12, first alone and then while v13's engine is asked to prefill their histories, past the service."""
    crowd = guests(fleet, "bench-floor", first)
    with crowd.talking():
        crowd.wait_for_turns(before)
        crowd.phase = Phase.DURING
        with prefilling(fleet, fleet.v13, crowd, WARM_TOKENS_PER_S):
            crowd.wait_for_turns(FLOOR_TURNS)
    report("beside plain prefills", crowd.settled())
    return crowd


def resend(fleet: BenchFleet) -> Crowd:
    """The same people with all their text, on the engines themselves."""
    serves = [fleet.v12.address]
    people = [Resender(number=3 * PEOPLE + n, address=serves) for n in range(PEOPLE)]
    crowd = Crowd(people)
    with crowd.talking():
        crowd.wait_for_turns(TURNS_BEFORE)
        crowd.phase = Phase.DURING
        serves.append(fleet.v13.address)
        crowd.wait_for_all(fleet.v13.address)
        crowd.phase = Phase.AFTER
        crowd.wait_for_turns(TURNS_AFTER)
    report("resent", crowd.settled())
    return crowd


def say_moves(name: str, crowd: Crowd, revision: str) -> None:
    """Printed, since they are the few that a p95 of many turns does not show."""
    first = [next(one for one in person.said if one.revision == revision) for person in crowd.people]
    took = [one.first_text_s for one in first]
    print(
        f"{name}: first answers on v13: p50 {statistics.median(took):.2f} s, at most {max(took):.2f} s",
        flush=True,
    )


def ratio(said: Sequence[Said], beside: Sequence[Said]) -> float:
    """Of the p95 of the time to the first text."""
    return round(p95(said) / p95(beside), 2)


def halves(said: Sequence[Said]) -> tuple[list[Said], list[Said]]:
    """The later half of everyone's turns, and the earlier one."""
    by_person = dict[str, list[Said]]()
    for one in said:
        by_person.setdefault(one.conversation, []).append(one)
    middles = [(turns, len(turns) // 2) for turns in by_person.values()]
    later = [one for turns, middle in middles for one in turns[middle:]]
    return later, [one for turns, middle in middles for one in turns[:middle]]


def of(crowd: Crowd, phase: Phase) -> list[Said]:
    """Without everyone's first turn."""
    return [one for one in crowd.settled() if one.phase is phase]


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
