"""Registration with an answer to the canary: the first engine of a revision sets it, and who answers otherwise is not let in."""

from typing import Any

import httpx
import pytest

from service.domain.canary import TOKENS
from service.store import fleet
from tests.api.rolling import advance, look, start
from tests.api.stack import Stack, running_stack
from tests.engines.simulated import SimulatedEngine

GOLDEN = list(range(100, 100 + TOKENS))
OTHER = [*GOLDEN[:5], 7, *GOLDEN[6:]]


def register(stack: Stack, engine: SimulatedEngine, answer: list[int] | None, **more: Any) -> httpx.Response:
    body = {
        "boot": engine.boot,
        "address": engine.address,
        "role": "both",
        "descriptor": engine.descriptor.to_json(),
    }
    canary = {} if answer is None else {"canary": {"prompt": [1, 2], "answer": answer, "compared": 16} | more}
    return stack.admin.post("/admin/engines", json=body | canary)


def engine(stack: Stack, weights: str = "a") -> SimulatedEngine:
    return stack.exits.enter_context(SimulatedEngine(weights, stack.store))


def states(stack: Stack) -> dict[str, str]:
    return {e["boot"]: e["state"] for e in stack.admin.get("/admin/engines").json()["data"]}


def test_the_first_engine_of_a_revision_sets_what_later_ones_must_answer(stack: Stack) -> None:
    first, second = engine(stack), engine(stack)
    assert register(stack, first, GOLDEN).status_code == 201
    assert register(stack, second, GOLDEN).status_code == 201
    known = stack.admin.get(f"/admin/revisions/{first.revision}/canary").json()
    assert (known["recorded"]["boot"], known["recorded"]["answer"]) == (first.boot, GOLDEN)
    assert known["failures"] == []


def test_an_engine_that_answers_otherwise_is_not_let_in_and_the_first_token_is_named(stack: Stack) -> None:
    first, second = engine(stack), engine(stack)
    register(stack, first, GOLDEN)
    refused = register(stack, second, OTHER)
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error["code"] == "canary_differs"
    assert "token 5 of its answer is 7, and was 105" in error["message"]
    assert "--canary prefix:5" in error["message"]
    assert states(stack) == {first.boot: "ready"}
    [failed] = stack.admin.get(f"/admin/revisions/{first.revision}/canary").json()["failures"]
    assert (failed["boot"], failed["place"], failed["expected"], failed["got"]) == (second.boot, 5, 105, 7)


def test_it_is_let_in_where_its_operator_has_no_more_compared_than_is_alike(stack: Stack) -> None:
    register(stack, engine(stack), GOLDEN)
    assert register(stack, engine(stack), OTHER, compared=5).status_code == 201


def test_each_revision_has_its_own(stack: Stack) -> None:
    assert register(stack, engine(stack), GOLDEN).status_code == 201
    assert register(stack, engine(stack, "b"), OTHER).status_code == 201


def test_once_it_is_forgotten_the_next_engine_sets_it_anew(stack: Stack) -> None:
    first, second = engine(stack), engine(stack)
    register(stack, first, OTHER)
    assert register(stack, second, GOLDEN).status_code == 409
    path = f"/admin/revisions/{first.revision}/canary"
    assert stack.admin.delete(path, params={"reason": "a broken card"}).status_code == 200
    assert stack.admin.delete(path).status_code == 404
    assert stack.admin.get(path).json()["recorded"] is None
    assert register(stack, second, GOLDEN).status_code == 201
    assert register(stack, engine(stack), OTHER).status_code == 409


@pytest.mark.parametrize(
    ("answer", "more"),
    [(GOLDEN[:-1], {}), (GOLDEN, {"compared": 0}), (GOLDEN, {"compared": 17}), (GOLDEN, {"prompt": []})],
)
def test_a_canary_that_is_none_is_refused(stack: Stack, answer: list[int], more: dict[str, Any]) -> None:
    assert register(stack, engine(stack), answer, **more).status_code == 400


LEGAL = "a" * 64


def adapted(stack: Stack, made: SimulatedEngine, answer: list[int] | None, **more: Any) -> dict[str, Any]:
    """What becomes of an adapter that this engine tells of; registered before with its own answer."""
    revision = made.computed_under("legal").digest
    body: dict[str, Any] = {"adapters": [{"model": "legal", "adapter": LEGAL, "revision": revision}]}
    if answer is not None:
        body["canaries"] = {"legal": {"prompt": [1, 2], "answer": answer, "compared": 16} | more}
    told = stack.admin.put(f"/admin/engines/{made.boot}/adapters", json=body)
    assert told.status_code == 200, told.text
    [served] = told.json()["adapters"]
    [held] = next(e for e in stack.admin.get("/admin/engines").json()["data"] if e["boot"] == made.boot)[
        "adapters"
    ]
    assert held["revision"] == served.get("revision")
    return dict(served)


def with_adapter(stack: Stack) -> SimulatedEngine:
    made = engine(stack)
    made.adapters["legal"] = LEGAL
    assert register(stack, made, GOLDEN).status_code == 201
    return made


def test_an_adapter_is_held_against_what_its_own_revision_answered_first(stack: Stack) -> None:
    first, second, third = (with_adapter(stack) for _ in range(3))
    revision = first.computed_under("legal").digest
    assert adapted(stack, first, OTHER)["revision"] == revision, "another's than its base's"
    assert adapted(stack, second, OTHER)["revision"] == revision
    refused = adapted(stack, third, GOLDEN)
    assert "token 5 of its answer is 105, and was 7" in refused["reason"]
    known = stack.admin.get(f"/admin/revisions/{revision}/canary").json()
    assert (known["recorded"]["boot"], known["recorded"]["answer"]) == (first.boot, OTHER)
    assert [(f["boot"], f["address"]) for f in known["failures"]] == [(third.boot, third.address)]


def test_one_that_is_refused_gets_no_turn_and_its_base_does(stack: Stack) -> None:
    good, bad = with_adapter(stack), with_adapter(stack)
    adapted(stack, good, GOLDEN)
    adapted(stack, bad, OTHER)
    with stack.database.begin() as conn:
        serving = {(e.boot, e.revision) for e in fleet.live_engines(conn)}
    base, legal = good.revision, good.computed_under("legal").digest
    assert serving == {(good.boot, base), (good.boot, legal), (bad.boot, base)}


def test_it_may_be_compared_in_part_and_is_heard_again_once_the_first_is_forgotten(stack: Stack) -> None:
    first, second = with_adapter(stack), with_adapter(stack)
    revision = adapted(stack, first, OTHER)["revision"]
    assert "reason" in adapted(stack, second, GOLDEN)
    assert adapted(stack, second, GOLDEN, compared=5)["revision"] == revision
    assert stack.admin.delete(f"/admin/revisions/{revision}/canary").status_code == 200
    assert adapted(stack, second, GOLDEN)["revision"] == revision
    assert "reason" in adapted(stack, first, OTHER)


def test_a_rollout_to_an_adapter_stops_when_an_engine_fails_its_canary(stack: Stack) -> None:
    stack.start_engine("b", alias=True)
    first, second = with_adapter(stack), with_adapter(stack)
    revision = adapted(stack, first, GOLDEN)["revision"]
    rollout = start(stack, revision, shift=[50, 100], hold_s=600)
    advance(stack)
    adapted(stack, second, OTHER)
    advance(stack)
    assert look(stack, rollout)["reason"] == "1 failed canaries on the target, more than the limit of 0"


def test_a_claim_to_another_revision_leaves_no_canary_behind(stack: Stack) -> None:
    made = with_adapter(stack)
    revision = made.computed_under("legal").digest
    body = {
        "adapters": [{"model": "legal", "adapter": "c" * 64, "revision": revision}],
        "canaries": {"legal": {"prompt": [1, 2], "answer": OTHER, "compared": 16}},
    }
    assert stack.admin.put(f"/admin/engines/{made.boot}/adapters", json=body).status_code == 409
    assert stack.admin.get(f"/admin/revisions/{revision}/canary").json()["recorded"] is None


def test_an_adapter_without_an_answer_serves_unless_the_service_wants_one(database: str) -> None:
    with running_stack(database) as stack:
        assert "revision" in adapted(stack, with_adapter(stack), None)
    with running_stack(database, canary_required=True) as stack:
        made = with_adapter(stack)
        assert "EVERTURN_CANARY_REQUIRED" in adapted(stack, made, None)["reason"]
        assert "revision" in adapted(stack, made, GOLDEN)


def test_an_engine_without_an_answer_is_let_in_unless_the_service_wants_one(database: str) -> None:
    with running_stack(database) as stack:
        assert register(stack, engine(stack), None).status_code == 201
    with running_stack(database, canary_required=True) as stack:
        refused = register(stack, engine(stack), None)
        assert refused.status_code == 400
        assert "EVERTURN_CANARY_REQUIRED" in refused.json()["error"]["message"]
        assert register(stack, engine(stack), GOLDEN).status_code == 201


def test_a_rollout_stops_by_itself_when_an_engine_of_its_target_fails_the_canary(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    new = engine(stack, "b")
    register(stack, new, GOLDEN)
    rollout = start(stack, new.revision, shift=[50, 100], hold_s=600)
    advance(stack)
    register(stack, engine(stack, "a"), GOLDEN)
    register(stack, engine(stack, "a"), OTHER)
    advance(stack)
    assert look(stack, rollout)["state"] == "shifting", "that was an engine of its source"
    assert register(stack, engine(stack, "b"), OTHER).status_code == 409
    advance(stack)
    found = look(stack, rollout)
    assert (found["state"], found["troubles"]["failed_canaries"]) == ("paused", 1)
    assert found["reason"] == "1 failed canaries on the target, more than the limit of 0"
