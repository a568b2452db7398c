"""An engine of the zygote leaves the cores to others between two answers, and all but one while it computes."""

import time

import pytest

from tests.e2e.fleet import process_tree
from tests.engines.real import RealEngine
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

WATCHED_S = 0.8
"""Within the second for which vLLM's processes would spin."""


def cpu_s(engine: RealEngine) -> list[float]:
    """Of each of its processes."""
    times = [process.cpu_times() for process in process_tree(engine.pid)]
    return [one.user + one.system for one in times]


def spent(before: list[float], after: list[float]) -> list[float]:
    return sorted(new - old for old, new in zip(before, after, strict=True))


def test_an_engine_that_has_answered_leaves_the_cores_to_others(v12_engine: RealEngine) -> None:
    v12_engine.cold(prompt(1))
    before = cpu_s(v12_engine)
    time.sleep(WATCHED_S)
    assert sum(spent(before, cpu_s(v12_engine))) < WATCHED_S / 4


def test_an_engine_that_computes_takes_one_core(v12_engine: RealEngine) -> None:
    before = cpu_s(v12_engine)
    for _ in range(4):
        v12_engine.cold(prompt(1), max_tokens=128, ignore_eos=True)
    *others, worker = spent(before, cpu_s(v12_engine))
    assert sum(others) < worker * 0.8
