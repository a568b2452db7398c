"""Registration with an answer to the canary: the first engine of a revision sets it, and who answers otherwise is not let in."""

from typing import Any

import httpx
import pytest

from service.domain.canary import TOKENS
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
