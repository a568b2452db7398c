"""That the simulation finds what it is for: bugs are planted in the product, and each must show within some seeds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.simulation.mutations import FOUND, HELD, SCENARIOS, Planted
from tests.simulation.run import run_seed
from tests.simulation.scenario import of_seed
from tests.simulation.substitution import simulated

WITHIN_SEEDS = 100
HELD_FOR_SEEDS = 25


@pytest.fixture(autouse=True)
def _in_simulation() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.parametrize("plant", FOUND, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], Planted]) -> None:
    with ExitStack() as planted:
        for one in plant():
            planted.enter_context(one)
        scenario = SCENARIOS.get(plant, of_seed)
        assert any(run_seed(seed, scenario=scenario(seed)).violations for seed in range(WITHIN_SEEDS))


@pytest.mark.parametrize("plant", HELD, ids=lambda plant: plant.__name__)
def test_without_one_guard_the_other_holds(plant: Callable[[], Planted]) -> None:
    with ExitStack() as planted:
        for one in plant():
            planted.enter_context(one)
        for seed in range(HELD_FOR_SEEDS):
            verdict = run_seed(seed, scenario=SCENARIOS.get(plant, of_seed)(seed))
            assert not verdict.violations, verdict.how_to_rerun
