"""Some hundred seeds of everything at once; that a seed is the same each time; and that the store here is like the real one."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service import rollout_flow
from tests.simulation.run import run_seed
from tests.simulation.substitution import simulated, store_functions

REPOSITORY = Path(__file__).parents[2]
SEEDS = range(1, 101)
SHOWN = "from tests.simulation.run import run_seed\nfrom tests.simulation.substitution import simulated\n"
SHOWN += "with simulated(): print([run_seed(seed).digest for seed in (3, 11, 20)])"


@pytest.mark.parametrize("first", SEEDS[::25])
def test_whatever_goes_wrong_nothing_is_wrong_lost_or_doubled(first: int) -> None:
    with simulated():
        for seed in range(first, first + 25):
            verdict = run_seed(seed)
            assert not verdict.violations, verdict.how_to_rerun


def test_a_seed_is_the_same_in_any_process() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", SHOWN],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": number},
            capture_output=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(seen) == 1


def test_another_seed_is_another_run() -> None:
    with simulated():
        assert run_seed(3).digest != run_seed(4).digest


def test_an_engine_that_sends_no_heartbeats_for_an_error_of_ours_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("no such argument")

    with simulated():
        monkeypatch.setattr(rollout_flow, "renew_engine", broken)
        assert any("no such argument" in one for one in run_seed(3).violations)


def test_each_function_of_the_simulated_store_is_called_as_the_real_one_is() -> None:
    for name, real, ours in store_functions():
        wanted, given = inspect.signature(real).parameters, inspect.signature(ours).parameters
        assert [(p.name, p.kind, p.default is p.empty) for p in wanted.values()] == [
            (p.name, p.kind, p.default is p.empty) for p in given.values()
        ], name


def test_the_real_functions_are_back_in_their_places_afterwards() -> None:
    before = {name: real for name, real, _ in store_functions()}
    with simulated():
        assert any(real is not before[name] for name, real, _ in store_functions())
    assert {name: real for name, real, _ in store_functions()} == before
