"""A slice of `make faults`: something is killed, stopped or cut at a step of a turn, or of one that two engines share; each seed in a conversation of its own."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from openai import OpenAI
from sqlalchemy import text

from tests.api.stack import eventually
from tests.chaos.client import connect
from tests.faults.engine_process import ANSWERS_OLD
from tests.faults.life import found_of, live
from tests.faults.plan import Kind, Site, Victim, of_seed
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


NEVER = Site(where="engine", step="render", number=10**9)


def test_roads_are_gone_by_and_those_to_engines_where_one_is_to_be_broken(
    machine: Fleet, client: OpenAI
) -> None:
    to_engine = machine.roads[ANSWERS_OLD]
    carried = []
    for victim in (Victim.ENGINE_ROAD, Victim.API):
        before = to_engine.carried
        live(machine, client, 0, replace(of_seed(0), kind=Kind.TURN, victim=victim, site=NEVER))
        carried.append(to_engine.carried - before)
    assert carried[0] > 0
    assert carried[1] == 0
    assert machine.roads[Victim.API_ROAD].carried > 0
    assert machine.roads[Victim.WORKER_ROAD].carried > 0


def test_where_nothing_breaks_one_engine_prefills_another_answers_and_the_audit_names_both(
    machine: Fleet, client: OpenAI
) -> None:
    with_new_engines(machine)
    run = live(machine, client, 0, replace(of_seed(0), kind=Kind.SPLIT, site=NEVER))
    assert run.violations == ()
    (told,) = {told.response for told in run.exchanges[1].told}
    query = text(
        "SELECT kv_source, prefill_engine, decode_engine FROM audit.turn_provenance WHERE turn_id = :turn"
    )
    with machine.auditor.connect() as conn:
        ((source, prefill, decode),) = conn.execute(query, {"turn": told}).all()
    assert (source, decode) == ("prefilled", machine.engines[ANSWERS_OLD].boot)
    assert prefill in machine.prefilling
    assert machine.twins[prefill].revision == machine.twins[decode].revision
    # That the checks look at it.
    machine.prefilling.remove(prefill)
    assert found_of(machine, run.exchanges)
    machine.prefilling.add(prefill)


def with_new_engines(machine: Fleet) -> None:
    """For a lease's time after seeds before, those that were killed are still asked, and those that failed are not."""
    for engine in machine.engines.values():
        engine.kill()
    machine.mend()
    query = text("SELECT boot FROM engines WHERE lease_expires_at > clock_timestamp()")

    def only_they_are_known() -> bool:
        with machine.base.database.connect() as conn:
            return set(conn.execute(query).scalars()) <= {engine.boot for engine in machine.engines.values()}

    eventually(only_they_are_known)


def test_what_a_client_was_told_otherwise_shows(machine: Fleet, client: OpenAI) -> None:
    """That these checks can fail."""
    run = live(machine, client, 0, replace(of_seed(OF_TURNS[0]), site=NEVER))
    assert run.violations == ()
    *others, last = run.exchanges
    for wrong in (
        replace(last.told[-1], text="another answer"),
        replace(last.told[-1], response="resp_unheard_of"),
        replace(last.told[-1], outcome=type(last.told[-1].outcome)("failed")),
    ):
        assert found_of(machine, [*others, replace(last, told=(wrong,))])
