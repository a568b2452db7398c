"""Turns with a short history that come while a warm-up is at it, or has it queued: joined or called off, and nothing is wrong."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from service.domain import plan
from tests.simulation import actors, world
from tests.simulation.run import run_seed
from tests.simulation.scenario import hasty
from tests.simulation.store import warm_ups
from tests.simulation.substitution import simulated

SEEDS = range(40)
SHORT = actors.SETTINGS.model_copy(update={"rebuild_min_tokens": 90})
"""What is warmed is shorter, and longer than what joining adds."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What turns found and did."""
    counted = Counter[str]()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counts(*args: Any, **given: Any) -> Any:
            found = function(*args, **given)
            counted[f"{name} {found}"] += 1
            return found

        return counts

    monkeypatch.setattr(warm_ups, "call_off", counting("called off", warm_ups.call_off))
    monkeypatch.setattr(plan, "worth_joining", counting("joined", plan.worth_joining))
    for module in (actors, world):
        monkeypatch.setattr(module, "SETTINGS", SHORT)
    with simulated():
        yield counted


def test_whoever_meets_a_warm_up_joins_it_or_calls_it_off_and_nothing_is_wrong_lost_or_doubled(
    seen: Counter[str],
) -> None:
    for seed in SEEDS:
        verdict = run_seed(seed, scenario=hasty(seed))
        assert not verdict.violations, f"hasty({seed})"
    assert seen["joined True"] > 0
    assert seen["joined False"] > 0
    assert seen["called off None"] > 0
