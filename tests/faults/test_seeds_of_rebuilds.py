"""A slice of `make faults`: something is killed, stopped or cut while a turn's history is rebuilt for the new revision."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.chaos.client import connect
from tests.faults.life import live
from tests.faults.plan import of_seed
from tests.faults.rig import Fleet, fleet, scratch
from tests.faults.seeds import OF_REBUILDS


@pytest.fixture(scope="module")
def machine() -> Iterator[Fleet]:
    with scratch() as folder, fleet(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(machine: Fleet) -> Iterator[OpenAI]:
    made = connect(machine.base.url, machine.base.secrets.tenant)
    yield made
    made.close()


@pytest.mark.parametrize("seed", OF_REBUILDS)
def test_a_rebuild_ends_once_and_so_does_its_turn(machine: Fleet, client: OpenAI, seed: int) -> None:
    run = live(machine, client, seed, of_seed(seed))
    assert run.violations == (), f"{run.fault}, at {run.struck}; again: {run.how_to_rerun}"
