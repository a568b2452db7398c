"""What the simulation once found, each as the shortest run in which it shows."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from service.domain.events import TurnPinned
from service.domain.terms import Terms
from tests.simulation.checks import violations
from tests.simulation.process import Process
from tests.simulation.scenario import Scenario, eventful
from tests.simulation.substitution import simulated
from tests.simulation.tables import Session
from tests.simulation.world import World, fresh_loop

LONGER_THAN_A_LEASE_S = 12.0


@pytest.fixture(autouse=True)
def _in_simulation() -> Iterator[None]:
    with simulated():
        yield


def calm(**given: object) -> Scenario:
    quiet = replace(eventful(0), terms=0.0, tools=0.0, cancelled=0.0, max_model_len=100_000, deed="nothing")
    return replace(quiet, conversations=1, turns=2, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_the_only_worker_that_lost_its_turn_takes_it_up_again(seed: int) -> None:
    """It waited for another worker to finish it, and there was none."""
    loop = fresh_loop(seed)
    world = World(loop, calm(terms=1.0, pool=1))
    world.clients[0].asked_for = Terms(background=True)
    stopped: list[str] = []

    def stop(process: Process, session: Session) -> None:
        pinned = any(isinstance(event, TurnPinned) for event in session.appended)
        if pinned and process.kind == "worker" and not stopped:
            stopped.append(process.kind)
            process.stopped_until_s = loop.time() + LONGER_THAN_A_LEASE_S

    world.server.watchers.append(stop)
    try:
        loop.run_until_complete(world.run())
        found = [*violations(world)]
        world.close()
    finally:
        loop.close()
    assert found == []
    assert stopped == ["worker"]
