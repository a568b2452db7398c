"""Contracts through the API: approved by an operator, used by a turn, counted, revoked; and refused where they must be."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service.domain.contract import Contract
from service.domain.events import FLEET, TurnCompleted
from service.domain.fleet_events import ContractApproved, ContractRevoked
from service.store import event_store
from tests.api.stack import Stack
from tests.engines.simulated import SimulatedEngine, descriptor

OLD, NEW = descriptor("a"), descriptor("a", version="2")
LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def body(**changes: Any) -> dict[str, Any]:
    return {
        "reader": NEW.digest,
        "producer": OLD.digest,
        "waived": ["engine_version"],
        "reason": "equal on the golden prompts",
        "approved_by": "ada",
        "ends_at": LATER,
    } | changes


def approve(stack: Stack, **changes: Any) -> Contract:
    answer = stack.admin.post("/admin/contracts", json=body(**changes))
    assert answer.status_code == 201, answer.text
    contract = Contract.from_json(answer.json()["terms"])
    assert answer.json()["contract"] == contract.id
    return contract


@pytest.fixture
def upgraded(stack: Stack) -> tuple[Stack, SimulatedEngine, str]:
    """A conversation with KV of one engine version, and the alias on the next."""
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("hello, I am Grace and I like lighthouses", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    engine = stack.start_engine("a", version="2", alias=True)
    return stack, engine, conversation


def test_a_turn_reads_the_other_revisions_kv_under_a_contract(
    upgraded: tuple[Stack, SimulatedEngine, str],
) -> None:
    stack, engine, conversation = upgraded
    contract = approve(stack)
    engine.contracts.add(contract.id)
    answer = stack.ask("and now?", conversation=conversation)
    assert (answer["kv"]["source"], answer["kv"]["contract"]) == ("reused", contract.id)
    assert contract.id in answer["kv"]["reason"]
    completed = [e for e in stack.events(conversation) if isinstance(e, TurnCompleted)][-1]
    assert completed.loaded is not None
    assert (completed.loaded.contract, completed.loaded.revision) == (contract.id, OLD.digest)
    with stack.owner.connect() as conn:
        used = conn.execute(text("SELECT contract_id, breach, waived, approved_by FROM audit.contracts_used"))
        assert [tuple(row) for row in used] == [(contract.id, None, ["engine_version"], "ada")]
        assert conn.execute(text("SELECT count(*) FROM audit.cross_revision_hits")).scalar_one() == 0
    assert "everturn_kv_contract_uses_total 1.0" in stack.admin.get("/metrics").text


def test_an_engine_that_was_not_given_the_contract_refuses_and_the_turn_is_answered_all_the_same(
    upgraded: tuple[Stack, SimulatedEngine, str],
) -> None:
    stack, _, conversation = upgraded
    approve(stack)
    answer = stack.ask("and now?", conversation=conversation)
    assert (answer["kv"]["source"], answer["kv"]["contract"]) == ("none", None)
    assert answer["kv"]["refusal"]["differing_fields"] == ["engine_version"]


def test_a_revoked_contract_is_never_offered(upgraded: tuple[Stack, SimulatedEngine, str]) -> None:
    stack, engine, conversation = upgraded
    contract = approve(stack)
    engine.contracts.add(contract.id)
    answer = stack.admin.delete(f"/admin/contracts/{contract.id}")
    assert (answer.status_code, answer.json()["revoked"]) == (200, True)
    assert f"{contract.id}.json" in answer.json()["next"]
    assert stack.ask("and now?", conversation=conversation)["kv"]["contract"] is None
    assert engine.requests[-1]["kv_transfer_params"]["everturn"]["contract"] is None


def test_kv_under_a_contract_that_nobody_planned_is_not_accepted(
    upgraded: tuple[Stack, SimulatedEngine, str],
) -> None:
    """An engine that says it read under some contract of its own: its answer is thrown away."""
    stack, engine, conversation = upgraded
    loaded = {
        "artifact": "kv_" + "0" * 32,
        "revision": OLD.digest,
        "producer": "boot_x",
        "tokens": 4,
        "bytes": 4,
        "seconds": 0.1,
        "contract": "ctr_" + "0" * 64,
    }
    engine.faults.evidence = {"loaded": loaded}
    answer = stack.post(input="and now?", conversation=conversation)
    assert answer.status_code == 503
    assert not [e for e in stack.events(conversation) if isinstance(e, TurnCompleted) and e.loaded]


def test_approval_and_end_are_facts_and_can_be_read(stack: Stack) -> None:
    for known in (OLD, NEW):
        stack.admin.post("/admin/revisions", json={"descriptor": known.to_json()})
    contract = approve(stack)
    path = f"/admin/contracts/{contract.id}"
    assert stack.admin.get(f"{path}/terms").json() == contract.to_json()
    assert stack.admin.get(path).json()["revoked_at"] is None
    stack.admin.delete(path)
    assert stack.admin.get(path).json()["revoked_at"] is not None
    assert stack.admin.delete(path).status_code == 404
    listed = stack.admin.get("/admin/contracts").json()["data"]
    assert [one["contract"] for one in listed] == [contract.id]
    with stack.database.begin() as conn:
        facts = event_store.read(conn, tenant=FLEET, stream=f"contract/{contract.id}")
    assert [type(fact) for fact in facts] == [ContractApproved, ContractRevoked]
    assert isinstance(facts[0], ContractApproved)
    assert facts[0].terms == contract


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"waived": ["engine_version", "weights"]}, 400, "waived"),
        ({"waived": []}, 400, "waived"),
        ({"waived": ["engine_version", "colour"]}, 400, "waived"),
        ({"reader": "latest"}, 400, "reader"),
        ({"producer": "rev_" + "0" * 64}, 404, "producer"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, 400, "ends_at"),
        ({"ends_at": "2099-01-01T00:00:00"}, 400, "ends_at"),
        ({"ends_at": "never"}, 400, "ends_at"),
        ({"reason": ""}, 400, "reason"),
        ({"colour": 1}, 400, "colour"),
    ],
    ids=str,
)
def test_terms_that_cannot_be_are_refused_by_field(
    shared_stack: Stack, change: dict[str, Any], status: int, param: str
) -> None:
    for known in (OLD, NEW):
        shared_stack.admin.post("/admin/revisions", json={"descriptor": known.to_json()})
    answer = shared_stack.admin.post("/admin/contracts", json=body(**change))
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert shared_stack.admin.get("/admin/contracts").json()["data"] == []


def test_contracts_are_for_operators(shared_stack: Stack) -> None:
    assert shared_stack.http.post("/admin/contracts", json=body()).status_code == 403
    assert shared_stack.http.get("/admin/contracts").status_code == 403
    assert shared_stack.admin.get("/admin/contracts/latest").status_code == 400
    assert shared_stack.admin.get("/admin/contracts/ctr_" + "0" * 64).status_code == 404
