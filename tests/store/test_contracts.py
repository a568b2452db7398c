"""Contracts as rows for the planner, and the audit's own judgement of each use, from events alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import ProgrammingError

from service import contract_flow
from service.domain.contract import Contract
from service.domain.errors import InvalidInput, NotFound
from service.domain.events import FLEET
from service.domain.fleet_events import ContractApproved, ContractRevoked
from service.store import contracts, event_store, fleet
from tests.domain.descriptors import V12 as OLD
from tests.domain.descriptors import V13, with_kv
from tests.store.histories import (
    NEW_ENGINE,
    NOW,
    OLD_ENGINE,
    append,
    completed,
    created,
    loaded,
    pinned,
    said,
)
from tests.store.histories import started as turn_started
from tests.store.test_audit import hits, register

NEWER = with_kv(engine_version="0.33.0")
REAL_NOW = datetime.now(UTC)


def approve(
    conn: Connection, *, ends_at: datetime = REAL_NOW + timedelta(hours=1), **changes: Any
) -> Contract:
    for known in (OLD, NEWER, V13):
        fleet.register_revision(conn, known, label=None)
    given: dict[str, Any] = {
        "reader": NEWER.digest,
        "producer": OLD.digest,
        "waived": ["engine_version"],
        "reason": "tested",
        "by": "ada",
        "now": NOW,
    }
    return contract_flow.approve_contract(conn, **given | {"ends_at": ends_at} | changes)


def test_what_was_approved_is_in_force_until_it_is_revoked(conn: Connection) -> None:
    contract = approve(conn)
    assert contracts.in_force(conn) == [contract]
    contract_flow.revoke_contract(conn, contract.id, by="bob", now=NOW)
    assert contracts.in_force(conn) == []
    found = contracts.find(conn, contract.id)
    assert found is not None
    assert (found.terms, found.revoked_at) == (contract, NOW)
    assert event_store.read(conn, tenant=FLEET, stream=f"contract/{contract.id}") == [
        ContractApproved(contract=contract.id, terms=contract),
        ContractRevoked(contract=contract.id, by="bob"),
    ]


def test_it_is_in_force_no_longer_than_its_end(conn: Connection) -> None:
    """By the database's clock, whatever the clock of the process that approved it."""
    ended = approve(conn, ends_at=REAL_NOW - timedelta(seconds=1))
    assert contracts.in_force(conn) == []
    assert [stored.terms for stored in contracts.list_all(conn)] == [ended]


def test_a_revoked_contract_cannot_be_revoked_again_nor_an_unknown_one(conn: Connection) -> None:
    contract = approve(conn)
    contract_flow.revoke_contract(conn, contract.id, by="bob", now=NOW)
    for gone in (contract.id, replace(contract, reason="other").id):
        with pytest.raises(NotFound):
            contract_flow.revoke_contract(conn, gone, by="bob", now=NOW)


def test_an_unregistered_revision_or_a_field_that_is_never_waived_leaves_nothing_behind(
    conn: Connection,
) -> None:
    stranger = with_kv(compile_mode="compiled").digest
    with pytest.raises(NotFound):
        approve(conn, producer=stranger, waived=["compile_mode", "engine_version"])
    with pytest.raises(InvalidInput, match="weights"):
        approve(conn, reader=V13.digest, waived=["weights"])
    assert contracts.list_all(conn) == []


def test_the_service_cannot_change_a_contracts_terms(conn: Connection) -> None:
    approve(conn)
    with pytest.raises(ProgrammingError, match="permission denied"):
        conn.execute(text("UPDATE contracts SET ends_ms = ends_ms + 1"))


# The audit


def used(conn: Connection, contract: Contract | None, *, named: str | None = None) -> Row[Any]:
    """Of a turn that was answered from KV of OLD by an engine of NEWER."""
    register(conn, (OLD_ENGINE, OLD.digest), (NEW_ENGINE, NEWER.digest))
    name: Any = named or (contract.id if contract else None)
    turn = completed(
        requested=NEWER.digest,
        measured=NEWER.digest,
        loaded=replace(loaded(OLD.digest, OLD_ENGINE), contract=name),
    )
    append(conn, created(), said("hi"), turn_started(), pinned(revision=NEWER.digest), turn)
    return conn.execute(text("SELECT * FROM audit.turn_provenance")).one()


def uses(conn: Connection) -> list[Row[Any]]:
    return list(conn.execute(text("SELECT * FROM audit.contracts_used")))


def test_a_use_under_a_contract_is_listed_apart_and_is_no_violation(conn: Connection) -> None:
    contract = approve(conn)
    row = used(conn, contract)
    assert (row.first_divergence, row.cross_revision, row.contract_id) == (None, False, contract.id)
    assert hits(conn) == []
    [use] = uses(conn)
    assert (use.contract_id, use.breach, use.waived) == (contract.id, None, ["engine_version"])
    assert (use.approved_by, use.artifact_revision, use.decode_revision) == ("ada", OLD.digest, NEWER.digest)
    assert use.tokens_loaded == 32


def test_the_same_use_without_a_contract_is_a_violation(conn: Connection) -> None:
    approve(conn)
    row = used(conn, None)
    assert row.cross_revision
    assert "is not decode revision" in row.first_divergence
    assert len(hits(conn)) == 1
    assert uses(conn) == []


def assert_breach(conn: Connection, row: Row[Any], words: str) -> None:
    assert row.cross_revision
    assert words in row.first_divergence
    assert len(hits(conn)) == 1
    assert words in uses(conn)[0].breach


def test_a_contract_that_nobody_approved_is_a_violation(conn: Connection) -> None:
    assert_breach(conn, used(conn, None, named="ctr_" + "0" * 64), "never approved")


def test_a_contract_between_others_is_a_violation(conn: Connection) -> None:
    assert_breach(conn, used(conn, approve(conn, reader=OLD.digest, producer=NEWER.digest)), "is about KV of")


def test_a_contract_of_another_reader_is_a_violation(conn: Connection) -> None:
    other = with_kv(engine_version="0.34.0")
    fleet.register_revision(conn, other, label=None)
    assert_breach(conn, used(conn, approve(conn, reader=other.digest)), "it lets")


def test_a_contract_that_had_ended_is_a_violation(conn: Connection) -> None:
    early = NOW - timedelta(hours=2)
    contract = approve(conn, now=early, ends_at=NOW)
    assert_breach(conn, used(conn, contract), "had ended")


def test_a_contract_that_was_revoked_before_is_a_violation(conn: Connection) -> None:
    contract = approve(conn)
    contract_flow.revoke_contract(conn, contract.id, by="bob", now=NOW - timedelta(seconds=1))
    assert_breach(conn, used(conn, contract), "revoked")


def test_revoking_it_afterwards_makes_earlier_uses_no_violation(conn: Connection) -> None:
    contract = approve(conn)
    row = used(conn, contract)
    assert not row.cross_revision
    contract_flow.revoke_contract(conn, contract.id, by="bob", now=NOW + timedelta(seconds=1))
    assert hits(conn) == []
    assert uses(conn)[0].revoked_at is not None


def test_a_contract_does_not_excuse_an_artifact_that_lies_about_its_producer(conn: Connection) -> None:
    contract = approve(conn)
    register(conn, (OLD_ENGINE, V13.digest), (NEW_ENGINE, NEWER.digest))
    turn = completed(
        requested=NEWER.digest,
        measured=NEWER.digest,
        loaded=replace(loaded(OLD.digest, OLD_ENGINE), contract=contract.id),
    )
    append(conn, created(), said("hi"), turn_started(), pinned(revision=NEWER.digest), turn)
    assert len(hits(conn)) == 1


def test_no_transaction_of_a_tenant_can_approve_or_revoke(conn: Connection) -> None:
    contract = approve(conn)
    for statement in (
        "INSERT INTO contracts SELECT * FROM contracts",
        "UPDATE contracts SET revoked_at = now()",
    ):
        with conn.begin_nested() as attempt:
            conn.execute(text("SET LOCAL ROLE everturn_service"))
            with pytest.raises(ProgrammingError, match="permission denied"):
                conn.execute(text(statement))
            attempt.rollback()
    assert contracts.in_force(conn) == [contract]
