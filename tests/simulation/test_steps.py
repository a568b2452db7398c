"""Something is killed at each step of the code, before it and after it, and what must hold holds: also at a step that is new."""

from collections.abc import Iterator
from itertools import cycle

import pytest

from tests.simulation.faults import Planned, Step, Storm
from tests.simulation.run import run_seed
from tests.simulation.scenario import eventful
from tests.simulation.steps import all_steps
from tests.simulation.substitution import simulated

LOOKED_AT = 120
"""Seeds in which each step is looked for."""
OF_THE_BROKER = (Storm.BROKER_EMPTIED, Storm.BROKER_AWAY, Storm.BROKER_RESTORED)
"""By turns: two of them meet each step, one before it and one after it."""


@pytest.fixture(scope="module", autouse=True)
def _in_simulation() -> Iterator[None]:
    with simulated():
        yield


@pytest.fixture(scope="module")
def reached(_in_simulation: None) -> dict[Step, int]:
    """By step, the first seed that comes by it; unharmed, each of these holds."""
    wanted, found = set(all_steps()), dict[Step, int]()
    for seed in range(LOOKED_AT):
        if not wanted:
            break
        verdict = run_seed(seed, scenario=eventful(seed))
        assert not verdict.violations, f"seed {seed} of eventful()"
        for step in wanted & verdict.met:
            found[step] = seed
        wanted -= verdict.met
    return found


def test_each_step_of_the_code_is_reached(reached: dict[Step, int]) -> None:
    missing = sorted(map(str, all_steps() - reached.keys()))
    assert not missing, f"no run crashes here: {missing}. Let a scenario come by, or simulate it."


def test_a_crash_at_any_step_loses_and_doubles_nothing(reached: dict[Step, int]) -> None:
    for step, seed in sorted(reached.items(), key=str):
        verdict = run_seed(seed, scenario=eventful(seed), planned=Planned(step=step))
        assert step in verdict.crashed
        assert not verdict.violations, f"killed {step}, eventful({seed})"


def test_a_broker_that_is_away_emptied_or_restored_at_any_step_loses_and_doubles_nothing(
    reached: dict[Step, int],
) -> None:
    for (step, seed), storm in zip(sorted(reached.items(), key=str), cycle(OF_THE_BROKER), strict=False):
        verdict = run_seed(seed, scenario=eventful(seed), planned=Planned(step=step, storm=storm))
        assert step in verdict.crashed
        assert not verdict.violations, f"{storm} {step}, eventful({seed})"
