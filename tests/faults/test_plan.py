"""What seeds stand for."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.faults.plan import DEEDS, ENGINE_STEPS, OF_A_REBUILD, OF_A_TURN, Deed, Victim, of_seed
from tests.faults.rig import SETTINGS
from tests.faults.seeds import OF_REBUILDS, OF_TURNS


def test_a_seed_stands_for_the_same_fault_each_time() -> None:
    assert [of_seed(seed) for seed in range(50)] == [of_seed(seed) for seed in range(50)]


@pytest.mark.parametrize(("seeds", "victims"), [(OF_TURNS, OF_A_TURN), (OF_REBUILDS, OF_A_REBUILD)])
def test_the_slice_that_ci_runs_does_everything_to_everybody(
    seeds: tuple[int, ...], victims: tuple[Victim, ...]
) -> None:
    done = {(fault.victim, fault.deed) for fault in map(of_seed, seeds)}
    assert done == {(victim, deed) for victim in victims for deed in DEEDS[victim]}
    assert len({*OF_TURNS, *OF_REBUILDS}) == len(OF_TURNS) + len(OF_REBUILDS) == 30


def test_three_hundred_seeds_do_everything_to_everybody_everywhere() -> None:
    faults = [of_seed(seed) for seed in range(1, 301)]
    done = Counter((fault.victim, fault.deed) for fault in faults)
    assert set(done) == {(victim, deed) for victim, deeds in DEEDS.items() for deed in deeds}
    assert {fault.site.where for fault in faults} == {"api", "worker", "engine"}
    assert {fault.site.step for fault in faults if fault.site.where == "engine"} == set(ENGINE_STEPS)


@pytest.mark.parametrize("seeds", [range(1, 301), (*OF_TURNS, *OF_REBUILDS)])
def test_stops_end_before_and_after_each_limit_of_the_fleet(seeds: Sequence[int]) -> None:
    faults = [of_seed(seed) for seed in seeds]
    stops = [fault.for_s for fault in faults if fault.deed in (Deed.STOP, Deed.SLOW)]
    for name in ("TURN_LEASE_S", "ENGINE_LEASE_S", "ENGINE_SILENCE_S"):
        assert min(stops) < float(SETTINGS[f"EVERTURN_{name}"]) < max(stops)


def test_only_a_rebuild_is_broken_at_messages_of_a_worker() -> None:
    assert all(of_seed(seed).rebuild for seed in range(500) if of_seed(seed).site.where == "worker")
