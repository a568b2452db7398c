"""What seeds stand for."""

from collections.abc import Sequence

import pytest

from tests.faults.plan import DEEDS, ENGINE_STEPS, EVERYTHING, Deed, Kind, Victim, of_seed
from tests.faults.rig import SETTINGS
from tests.faults.seeds import OF_REBUILDS, OF_TURNS

NIGHTLY = range(1, 301)
OF_CI = (*OF_TURNS, *OF_REBUILDS)


def test_a_seed_stands_for_the_same_fault_each_time() -> None:
    assert [of_seed(seed) for seed in range(50)] == [of_seed(seed) for seed in range(50)]


def test_the_slice_that_ci_runs_does_everything_to_everybody() -> None:
    done = {(fault.victim, fault.deed) for fault in map(of_seed, OF_CI)}
    assert done == {(victim, deed) for victim, deeds in DEEDS.items() for deed in deeds}
    assert len(set(OF_CI)) == len(OF_CI) == 36
    assert set(OF_CI) <= set(NIGHTLY)
    assert {of_seed(seed).kind for seed in OF_REBUILDS} == {Kind.REBUILD}
    assert {of_seed(seed).kind for seed in OF_TURNS} == {Kind.TURN, Kind.SPLIT}


@pytest.mark.parametrize("first", [1, 57, 1000])
def test_so_many_seeds_in_a_row_do_everything_to_everybody_in_each_kind_of_turn(first: int) -> None:
    faults = map(of_seed, range(first, first + len(EVERYTHING)))
    assert {(fault.kind, fault.victim, fault.deed) for fault in faults} == set(EVERYTHING)


def test_three_hundred_seeds_do_it_several_times_and_everywhere() -> None:
    faults = [of_seed(seed) for seed in NIGHTLY]
    assert len(faults) > 4 * len(EVERYTHING)
    assert {fault.site.where for fault in faults} == {"api", "worker", "engine"}
    assert {fault.site.step for fault in faults if fault.site.where == "engine"} == set(ENGINE_STEPS)


@pytest.mark.parametrize("seeds", [NIGHTLY, OF_CI])
def test_stops_end_before_and_after_each_limit_of_the_fleet(seeds: Sequence[int]) -> None:
    faults = [of_seed(seed) for seed in seeds]
    lasting = (Deed.STOP, Deed.SLOW, Deed.STALL, Deed.MUTE, Deed.DEAFEN, Deed.LOSE)
    stops = [fault.for_s for fault in faults if fault.deed in lasting]
    for name in ("TURN_LEASE_S", "ENGINE_LEASE_S", "ENGINE_SILENCE_S"):
        assert min(stops) < float(SETTINGS[f"EVERTURN_{name}"]) < max(stops)


def test_only_a_rebuild_is_broken_at_messages_of_a_worker_and_by_what_it_alone_needs() -> None:
    faults = [of_seed(seed) for seed in range(500)]
    of_a_rebuild = {Victim.WORKER, Victim.CHILD, Victim.BROKER, Victim.WORKER_ROAD}
    for fault in faults:
        if fault.site.where == "worker" or fault.victim in of_a_rebuild:
            assert fault.kind is Kind.REBUILD
