"""The simulated rollout of many conversations that bench/rollout_simulated.py measures: small here, and that it shows what it is for."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.rollout_simulated import Load, roll, summary
from tests.simulation.mutations import an_engine_reads_kv_of_any_revision
from tests.simulation.substitution import simulated

LOAD = Load(conversations=120, turns_a_second=10)


@pytest.fixture(autouse=True)
def _in_simulation() -> Iterator[None]:
    with simulated():
        yield


def test_no_answer_is_wrong_while_everybody_moves() -> None:
    found = roll(LOAD)
    assert found.violations == []
    assert (found.answered, found.failed, found.wrong) == (240, 0, 0)
    assert found.refused > 0, "the old revision's KV was offered, and not read"
    assert found.timeline[-1].percent == 100
    assert summary(LOAD, found, 1.0)["turns"] == 240


def test_kv_that_crosses_between_revisions_shows_as_wrong_answers() -> None:
    with ExitStack() as planted:
        for one in an_engine_reads_kv_of_any_revision():
            planted.enter_context(one)
        assert roll(LOAD).wrong > 0
