"""What an engine serves beside its base: checked, on record, and where its turns go."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection

from service import rebuild_run_flow, rollout_flow
from service.domain.adapter import Adapter, ServedAdapter, UnknownAdapter, effective
from service.domain.artifact import BootId
from service.domain.errors import NotFound, RevisionMismatch
from service.domain.events import FLEET, PlanKind
from service.domain.fleet_events import AdapterServed, AdapterWithdrawn
from service.domain.plan import EngineState
from service.domain.revision import Descriptor
from service.store import adapters, event_store, fleet
from service.turn_flow import NotPinned
from tests.engines.simulated import descriptor
from tests.flows.fleet import NOW, Running, accept, add_engine, answered, move_alias, pin, plan

BOOT = BootId("boot_a")
A, B = "a" * 64, "b" * 64


def served(model: str, adapter: str = A, base: Descriptor | None = None) -> ServedAdapter:
    revision = effective(base or descriptor("a"), adapter).digest
    return ServedAdapter(model=model, adapter=adapter, revision=revision)


LEGAL, STYLE = served("legal"), served("style", B)
RAW = UnknownAdapter(model="raw", reason="loaded past us")


def tell(conn: Connection, *told: Adapter, boot: BootId = BOOT) -> None:
    rollout_flow.serve_adapters(conn, boot, told, now=NOW)


def record(conn: Connection) -> list[object]:
    return list(event_store.read(conn, tenant=FLEET, stream=f"adapters/{BOOT}"))


def events(kind: type[AdapterServed | AdapterWithdrawn], *of: ServedAdapter) -> list[object]:
    return [
        AdapterServed(boot=BOOT, model=a.model, adapter=a.adapter, revision=a.revision)
        if kind is AdapterServed
        else AdapterWithdrawn(boot=BOOT, model=a.model, revision=a.revision)
        for a in of
    ]


def test_each_adapter_is_registered_as_the_engines_base_with_it(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    tell(conn, LEGAL, STYLE)
    assert fleet.find_descriptor(conn, LEGAL.revision) == effective(descriptor("a"), A)
    assert fleet.find_descriptor(conn, STYLE.revision) == effective(descriptor("a"), B)
    assert record(conn) == events(AdapterServed, LEGAL, STYLE)


def test_what_is_told_again_is_on_record_once_and_what_is_gone_is_withdrawn(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    for told in ((LEGAL,), (LEGAL,), (LEGAL, STYLE), (STYLE,), (STYLE, LEGAL)):
        tell(conn, *told)
    assert record(conn) == [
        *events(AdapterServed, LEGAL, STYLE),
        *events(AdapterWithdrawn, LEGAL),
        *events(AdapterServed, LEGAL),
    ]
    assert adapters.held_adapters(conn, BOOT) == {"legal": LEGAL.revision, "style": STYLE.revision}


def test_a_name_that_comes_to_stand_for_other_bytes_is_withdrawn_first(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    other = served("legal", B)
    tell(conn, LEGAL)
    tell(conn, other)
    assert record(conn) == [
        *events(AdapterServed, LEGAL),
        *events(AdapterWithdrawn, LEGAL),
        *events(AdapterServed, other),
    ]


def test_rows_that_were_lost_come_back_without_a_second_record(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    tell(conn, LEGAL)
    adapters.replace_adapters(conn, BOOT, [])
    tell(conn, LEGAL)
    assert adapters.held_adapters(conn, BOOT) == {"legal": LEGAL.revision}
    assert record(conn) == events(AdapterServed, LEGAL)


def test_one_without_identity_is_known_of_and_on_no_record(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    tell(conn, RAW)
    assert adapters.held_adapters(conn, BOOT) == {"raw": None}
    assert record(conn) == []


@pytest.mark.parametrize(
    "claimed",
    [replace(LEGAL, revision=STYLE.revision), served("legal", base=descriptor("another base"))],
)
def test_a_revision_that_is_not_the_base_with_that_adapter_is_refused(
    conn: Connection, claimed: ServedAdapter
) -> None:
    add_engine(conn, "a", BOOT)
    tell(conn, STYLE)
    with pytest.raises(RevisionMismatch) as refused:
        tell(conn, claimed)
    assert refused.value.measured == LEGAL.revision
    assert adapters.held_adapters(conn, BOOT) == {"style": STYLE.revision}


def test_an_engine_that_is_not_in_the_fleet_tells_nothing(conn: Connection) -> None:
    with pytest.raises(NotFound):
        tell(conn, LEGAL)
    add_engine(conn, "a", BOOT)
    fleet.set_engine_state(conn, boot=BOOT, state=EngineState.GONE)
    with pytest.raises(NotFound):
        tell(conn, LEGAL)


def test_a_heartbeat_answers_with_what_is_known(conn: Connection) -> None:
    add_engine(conn, "a", BOOT)
    assert rollout_flow.renew_engine(conn, BOOT, lease_s=60) == {}
    tell(conn, LEGAL, RAW)
    assert rollout_flow.renew_engine(conn, BOOT, lease_s=60) == {"legal": LEGAL.revision, "raw": None}


def test_a_conversation_of_the_base_is_rebuilt_for_the_adapter_that_its_alias_moves_to(
    conn: Connection,
) -> None:
    running = answered(conn)
    tell(conn, LEGAL, STYLE)
    move_alias(conn, LEGAL.revision)
    pinned = pin(conn, running)
    assert (pinned.pinned.plan, pinned.pinned.revision) == (PlanKind.REBUILD, LEGAL.revision)
    assert (pinned.engine.boot, pinned.engine.model) == (BOOT, "legal")
    assert pinned.pinned.carry_tokens
    rebuilder = rebuild_run_flow.pick_rebuild_engine(conn, LEGAL.revision)
    assert rebuilder is not None
    assert rebuilder.model == "legal"


def test_a_turn_of_the_base_is_not_sent_to_an_adapter(conn: Connection) -> None:
    running = answered(conn)
    tell(conn, LEGAL, STYLE)
    assert pin(conn, running).engine.model is None


def test_a_turn_waits_when_its_adapter_was_unloaded_or_never_had_an_identity(conn: Connection) -> None:
    running = answered(conn)
    tell(conn, LEGAL)
    move_alias(conn, LEGAL.revision)
    tell(conn, replace(RAW, model="legal"))
    waiting = plan(conn, running)
    assert isinstance(waiting, NotPinned)
    assert LEGAL.revision in waiting.reason
    tell(conn, LEGAL)
    assert pin(conn, running).engine.model == "legal"


def test_an_adapter_of_a_draining_engine_gets_no_turn(conn: Connection) -> None:
    running = answered(conn)
    tell(conn, LEGAL)
    move_alias(conn, LEGAL.revision)
    rollout_flow.drain_engine(conn, BOOT)
    assert isinstance(plan(conn, running), NotPinned)


def test_a_first_turn_on_an_adapter_names_its_revision(conn: Connection) -> None:
    answered(conn)
    tell(conn, LEGAL)
    move_alias(conn, LEGAL.revision)
    first = accept(conn)
    pinned = pin(conn, Running(conversation=first.conversation, turn=first.turn))
    assert (pinned.pinned.plan, pinned.pinned.revision) == (PlanKind.COLD, LEGAL.revision)
