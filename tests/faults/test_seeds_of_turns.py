"""A slice of `make faults`: something is killed, stopped or cut at a step of a turn; each seed in a conversation of its own."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from openai import OpenAI

from tests.chaos.client import connect
from tests.faults.life import found_of, live
from tests.faults.plan import of_seed
from tests.faults.rig import Fleet, fleet, scratch
from tests.faults.seeds import OF_TURNS

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""httpcore leaves a connection that its server's death breaks to the garbage collector."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Fleet]:
    with scratch() as folder, fleet(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(machine: Fleet) -> Iterator[OpenAI]:
    made = connect(machine.base.url, machine.base.secrets.tenant)
    yield made
    made.close()


@pytest.mark.parametrize("seed", OF_TURNS)
def test_a_turn_completes_or_fails_with_a_reason_once(machine: Fleet, client: OpenAI, seed: int) -> None:
    run = live(machine, client, seed, of_seed(seed))
    assert run.violations == (), f"{run.fault}, at {run.struck}; again: {run.how_to_rerun}"


def test_what_a_client_was_told_otherwise_shows(machine: Fleet, client: OpenAI) -> None:
    """That these checks can fail."""
    run = live(machine, client, 0, replace(of_seed(OF_TURNS[0]), site=replace(of_seed(0).site, number=10**9)))
    assert run.violations == ()
    *others, last = run.exchanges
    for wrong in (
        replace(last.told[-1], text="another answer"),
        replace(last.told[-1], response="resp_unheard_of"),
        replace(last.told[-1], outcome=type(last.told[-1].outcome)("failed")),
    ):
        assert found_of(machine, [*others, replace(last, told=(wrong,))])
