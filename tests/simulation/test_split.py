"""One engine prefills, another decodes: whatever befalls either of them, the store or the service between the two, nothing is wrong, lost or doubled."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.faults import Planned, Step, Storm
from tests.simulation.run import run_seed
from tests.simulation.scenario import divided, parted
from tests.simulation.steps import split_steps
from tests.simulation.substitution import simulated

PARTED = 40
"""Seeds."""
SEED = 1
"""Of a world in which a prompt is prefilled elsewhere several times."""
BEFALLS = (
    Storm.PREFILL_DIES,
    Storm.PREFILL_STOPS,
    Storm.PREFILL_EXCHANGED,
    Storm.DECODE_DIES,
    Storm.STORE_WIPED,
    Storm.STORE_AWAY,
    Storm.STORE_SLOW,
    Storm.DAMAGE,
    Storm.FORGE,
    Storm.SERVER_AWAY,
)
STEPS = sorted(split_steps(), key=str)


@pytest.fixture(scope="module", autouse=True)
def _in_simulation() -> Iterator[None]:
    with simulated():
        yield


def test_where_nothing_goes_wrong_what_is_long_is_prefilled_elsewhere_before_and_after_an_upgrade() -> None:
    verdict = run_seed(SEED, scenario=divided(SEED))
    assert not verdict.violations
    assert verdict.plans["kv prefilled"] > verdict.answered / 2
    assert set(STEPS) <= verdict.met


def test_whatever_befalls_its_parties_at_any_of_its_steps_loses_and_doubles_nothing() -> None:
    assert len(STEPS) == len({str(step) for step in STEPS}) >= 6
    for step in STEPS:
        for storm in BEFALLS:
            planned = Planned(step=step, nth=2, storm=storm)
            verdict = run_seed(SEED, scenario=divided(SEED), planned=planned)
            assert step in verdict.crashed
            assert not verdict.violations, f"{storm} {step} of divided({SEED})"


@pytest.mark.parametrize(
    ("storm", "where"),
    [
        (Storm.PREFILL_DIES, "before client.stream_generate"),
        (Storm.PREFILL_EXCHANGED, "before client.stream_generate"),
        (Storm.STORE_WIPED, "after turn_log.record_published"),
    ],
)
def test_what_befalls_it_is_felt(storm: Storm, where: str) -> None:
    (step,) = [one for one in STEPS if str(one) == f"{where} of api.prefill_split"]
    calm = run_seed(SEED, scenario=divided(SEED))
    hurt = run_seed(SEED, scenario=divided(SEED), planned=Planned(step=step, storm=storm))
    assert hurt.plans["kv prefilled"] < calm.plans["kv prefilled"]


def test_by_seeds_its_service_is_killed_at_each_of_its_steps() -> None:
    crashed, plans = set[Step](), Counter[str]()
    for seed in range(PARTED):
        verdict = run_seed(seed, scenario=parted(seed))
        assert not verdict.violations, f"parted({seed})"
        crashed |= verdict.crashed
        plans += verdict.plans
    assert plans["kv prefilled"] > plans["kv reused"]
    assert crashed & set(STEPS)
