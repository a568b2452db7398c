"""What seeds stand for."""

from collections import Counter

from tests.faults.plan import DEEDS, ENGINE_STEPS, Victim, of_seed
from tests.faults.seeds import OF_REBUILDS, OF_TURNS


def test_a_seed_stands_for_the_same_fault_each_time() -> None:
    assert [of_seed(seed) for seed in range(50)] == [of_seed(seed) for seed in range(50)]


def test_the_slice_that_ci_runs_hurts_everybody() -> None:
    assert len({*OF_TURNS, *OF_REBUILDS}) == len(OF_TURNS) + len(OF_REBUILDS) >= 30
    assert {of_seed(seed).victim for seed in (*OF_TURNS, *OF_REBUILDS)} == set(Victim)


def test_three_hundred_seeds_do_everything_to_everybody_everywhere() -> None:
    faults = [of_seed(seed) for seed in range(1, 301)]
    done = Counter((fault.victim, fault.deed) for fault in faults)
    assert set(done) == {(victim, deed) for victim, deeds in DEEDS.items() for deed in deeds}
    assert {fault.site.where for fault in faults} == {"api", "worker", "engine"}
    assert {fault.site.step for fault in faults if fault.site.where == "engine"} == set(ENGINE_STEPS)


def test_only_a_rebuild_is_broken_at_messages_of_a_worker() -> None:
    assert all(of_seed(seed).rebuild for seed in range(500) if of_seed(seed).site.where == "worker")
