"""Revisions never change, aliases move, engines live as long as their leases."""

import pytest
from sqlalchemy import Connection, text

from service.domain.artifact import BootId
from service.domain.errors import EngineRetired, NotFound, RevisionMismatch
from service.domain.events import ConversationId, OnUpgrade, TurnId
from service.domain.plan import Engine, EngineRole, EngineState
from service.domain.revision import RevisionDigest
from service.store import fleet, turns
from service.store.fleet import Alias
from tests.store.histories import (
    ACME,
    CHAT,
    NEW_ENGINE,
    OLD_ENGINE,
    TURN,
    V12,
    append,
    created,
    descriptor,
    pinned,
    said,
    started,
)

SECOND_CHAT = ConversationId("conv_2")


def register(
    conn: Connection, boot: BootId = NEW_ENGINE, *, weights: str = "ab" * 32, lease_s: float = 60
) -> RevisionDigest:
    revision = fleet.register_revision(conn, descriptor(weights), label=None)
    fleet.register_engine(
        conn,
        boot=boot,
        revision=revision,
        address="http://127.0.0.1:8001",
        role=EngineRole.BOTH,
        lease_s=lease_s,
    )
    return revision


def open_turn(conn: Connection, turn: TurnId = TURN, conversation: ConversationId = CHAT) -> None:
    turns.open_turn(
        conn,
        tenant=ACME,
        turn=turn,
        conversation=conversation,
        idempotency_key=None,
        request_hash="hash",
        owner="api-1",
        lease_s=60,
    )


def loads(conn: Connection) -> dict[str, int]:
    return {engine.boot: engine.load for engine in fleet.live_engines(conn)}


def test_a_descriptor_comes_back_with_its_digest(conn: Connection) -> None:
    digest = fleet.register_revision(conn, descriptor(), label="v12")
    found = fleet.find_descriptor(conn, digest)
    assert found == descriptor()
    assert found is not None
    assert found.digest == digest


def test_an_unknown_revision_has_no_descriptor(conn: Connection) -> None:
    assert fleet.find_descriptor(conn, V12) is None


def test_a_revision_keeps_its_first_label(conn: Connection) -> None:
    digest = fleet.register_revision(conn, descriptor(), label="v12")
    fleet.register_revision(conn, descriptor(), label="something else")
    fleet.register_revision(conn, descriptor("cd" * 32), label=None)
    [first, second] = fleet.list_revisions(conn)
    assert (first.revision, first.label, second.label) == (digest, "v12", None)


def test_an_alias_moves_and_takes_its_policy_along(conn: Connection) -> None:
    old = fleet.register_revision(conn, descriptor(), label="v12")
    new = fleet.register_revision(conn, descriptor("cd" * 32), label="v13")
    fleet.set_alias(conn, "production", old, OnUpgrade.STAY)
    fleet.set_alias(conn, "canary", old, None)
    fleet.set_alias(conn, "production", new, None)
    assert fleet.find_alias(conn, "production") == Alias(name="production", revision=new, on_upgrade=None)
    assert [alias.name for alias in fleet.list_aliases(conn)] == ["canary", "production"]
    assert fleet.find_alias(conn, "nightly") is None


def test_an_alias_points_only_at_what_is_registered(conn: Connection) -> None:
    with pytest.raises(NotFound, match=V12):
        fleet.set_alias(conn, "production", V12, None)


def test_a_registered_engine_is_live(conn: Connection) -> None:
    revision = register(conn)
    assert fleet.live_engines(conn) == [
        Engine(
            boot=NEW_ENGINE,
            revision=revision,
            address="http://127.0.0.1:8001",
            role=EngineRole.BOTH,
            state=EngineState.READY,
        )
    ]


def test_an_engine_of_an_unregistered_revision_is_refused(conn: Connection) -> None:
    with pytest.raises(NotFound, match=V12):
        fleet.register_engine(
            conn, boot=NEW_ENGINE, revision=V12, address="http://a", role=EngineRole.BOTH, lease_s=60
        )


def test_a_boot_never_changes_its_revision(conn: Connection) -> None:
    register(conn)
    with pytest.raises(RevisionMismatch):
        register(conn, weights="cd" * 32)


def test_an_engine_is_gone_when_its_lease_has_run_out_by_the_database_clock(conn: Connection) -> None:
    register(conn, lease_s=0.2)
    assert len(fleet.live_engines(conn)) == 1
    conn.execute(text("SELECT pg_sleep(0.25)"))
    assert fleet.live_engines(conn) == []
    assert [engine.state for engine in fleet.list_engines(conn)] == [EngineState.GONE]


def test_a_heartbeat_brings_an_expired_engine_back(conn: Connection) -> None:
    register(conn, lease_s=0)
    assert fleet.heartbeat(conn, boot=NEW_ENGINE, lease_s=60)
    assert len(fleet.live_engines(conn)) == 1


def test_what_an_engine_counts_by_itself_is_known_until_its_next_heartbeat(conn: Connection) -> None:
    register(conn)
    for requests in (5, 0, None):
        fleet.heartbeat(conn, boot=NEW_ENGINE, lease_s=60, requests=requests)
        assert [(e.requests, e.load) for e in fleet.live_engines(conn)] == [(requests, 0)]


def test_a_heartbeat_of_an_unknown_or_retired_boot_asks_it_to_register(conn: Connection) -> None:
    register(conn)
    fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.GONE)
    assert not fleet.heartbeat(conn, boot=NEW_ENGINE, lease_s=60)
    assert not fleet.heartbeat(conn, boot=OLD_ENGINE, lease_s=60)


def test_a_retired_engine_stays_out_of_the_fleet(conn: Connection) -> None:
    register(conn)
    fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.GONE)
    assert fleet.live_engines(conn) == []
    with pytest.raises(EngineRetired, match="start its process anew"):
        register(conn)
    assert fleet.live_engines(conn) == []


def test_a_draining_engine_goes_on_draining_when_it_registers_again(conn: Connection) -> None:
    register(conn)
    assert fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.DRAINING)
    register(conn)
    assert [engine.state for engine in fleet.live_engines(conn)] == [EngineState.DRAINING]


def test_the_state_of_an_unknown_boot_cannot_be_set(conn: Connection) -> None:
    assert not fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.DRAINING)


def test_the_load_of_an_engine_is_its_open_turns(conn: Connection) -> None:
    register(conn)
    register(conn, OLD_ENGINE)
    open_turn(conn)
    append(conn, created(), said("hi"), started(), pinned(engine=OLD_ENGINE), pinned(attempt=2))
    assert loads(conn) == {NEW_ENGINE: 1, OLD_ENGINE: 0}
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    assert loads(conn) == {NEW_ENGINE: 0, OLD_ENGINE: 0}


def test_an_open_turn_that_waits_for_an_engine_loads_none(conn: Connection) -> None:
    register(conn)
    append(conn, created(), started(), pinned())
    open_turn(conn, TurnId("resp_2"))
    append(conn, started(TurnId("resp_2")), after=3)
    open_turn(conn, TurnId("resp_3"), SECOND_CHAT)
    assert loads(conn) == {NEW_ENGINE: 0}
