"""An engine of the zygote leaves the cores to others between two answers."""

import time

import pytest

from tests.e2e.fleet import process_tree
from tests.engines.real import RealEngine
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

WATCHED_S = 0.8
"""Within the second for which vLLM's processes would spin."""


def cpu_s(engine: RealEngine) -> float:
    times = [process.cpu_times() for process in process_tree(engine.pid)]
    return sum(one.user + one.system for one in times)


def test_an_engine_that_has_answered_leaves_the_cores_to_others(v12_engine: RealEngine) -> None:
    v12_engine.cold(prompt(1))
    before = cpu_s(v12_engine)
    time.sleep(WATCHED_S)
    assert cpu_s(v12_engine) - before < WATCHED_S / 4
