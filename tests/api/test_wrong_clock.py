"""A process of the API whose clock is wrong, beside one whose clock is right: leases, deadlines and order are the database's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from service.api import app
from service.store.integrity import Walked, verify
from tests.api.rolling import advance, look
from tests.api.stack import Stack, eventually
from tests.engines.simulated import SimulatedEngine
from workers.turn_sweep import fail_overdue, settle_orphans

right = app.now


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


@pytest.fixture(params=[-1, 25], ids=["an hour behind", "a day and an hour ahead"])
def amiss(
    stack: Stack, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Its address."""
    off = timedelta(hours=request.param)

    def now() -> datetime:
        return right() + off

    monkeypatch.setattr(app, "now", now)
    with stack.second_server() as url:
        made = stack.http.post(f"{url}/v1/conversations").json()
        assert abs(made["created_at"] - (right() + off).timestamp()) < 60
        yield url


def test_what_is_said_to_either_stands_in_the_order_in_which_it_was_said(stack: Stack, amiss: str) -> None:
    chat = stack.conversation()
    for number, url in enumerate([stack.url, amiss] * 2):
        body = {"input": f"question {number}", "conversation": chat}
        stack.http.post(f"{url}/v1/responses", json=body).raise_for_status()
    asked = [item.text for item in stack.state(chat).items[::2]]
    assert asked == [f"question {number}" for number in range(4)]
    rows = stack.admin.get("/admin/audit/turns", params={"conversation_id": chat}).json()["data"]
    assert [row["state"] for row in rows] == ["completed"] * 4
    with stack.owner.begin() as conn:
        assert list(verify(conn, Walked())) == []


def test_a_turn_that_it_runs_is_no_orphan_and_not_overdue(
    stack: Stack, engine: SimulatedEngine, amiss: str
) -> None:
    engine.faults.hold_after = 2
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            stack.http.post,
            f"{amiss}/v1/responses",
            json={"input": "hello"},
            headers={"x-everturn-deadline-s": "600"},
        )
        eventually(lambda: engine.faults.hold_after is None)
        assert settle_orphans(stack.database, finish=True) == []
        fail_overdue(stack.database)
        engine.faults.release.set()
        answer = asked.result().json()
    assert (answer["status"], answer["attempt"]) == ("completed", 1)


def test_a_turn_that_it_accepted_is_overdue_when_its_time_is_over(stack: Stack, amiss: str) -> None:
    """Also for those who look at it from outside."""
    stack.turn_bell.unheard = True
    headers = {"x-everturn-deadline-s": "0.5"}
    body = {"input": "hello", "background": True}
    turn = stack.http.post(f"{amiss}/v1/responses", json=body, headers=headers).json()["id"]

    def failed() -> bool:
        fail_overdue(stack.database)
        return bool(stack.http.get(f"/v1/responses/{turn}").json()["status"] == "failed")

    eventually(failed)
    assert stack.http.get(f"/v1/responses/{turn}").json()["error"]["code"] == "deadline_exceeded"


def test_after_an_upgrade_it_has_the_history_rebuilt_and_the_next_turn_reuses_it(
    stack: Stack, amiss: str
) -> None:
    chat = stack.conversation()
    stack.ask("one", conversation=chat)
    stack.start_engine("b", alias=True)
    body = {"input": "two", "conversation": chat}
    assert stack.http.post(f"{amiss}/v1/responses", json=body).json()["kv"]["source"] == "rebuilt"
    stack.await_artifacts(chat, 2)
    assert stack.ask("three", conversation=chat)["kv"]["source"] == "reused"


def test_a_rollout_that_it_started_and_took_up_again_is_as_old_by_every_other(
    stack: Stack, amiss: str
) -> None:
    new = stack.start_engine("b")
    asked = {"alias": "production", "to": new.revision, "shift": [50, 100], "hold_s": [600, 0]}
    started = stack.admin.post(f"{amiss}/admin/rollouts", json=asked).json()
    assert started["age_s"] < 300
    rollout = started["rollout"]
    assert abs(look(stack, rollout)["age_s"]) < 300
    for _ in range(2):
        advance(stack)
    for how in ("pause", "resume"):
        stack.admin.post(f"{amiss}/admin/rollouts/{rollout}/{how}", json={}).raise_for_status()
    advance(stack)
    assert (held := look(stack, rollout))["percent"] == 50
    assert 300 < held["eta_s"] <= 600
