"""`/admin/rebuilds`: the queue listed, a rebuild cancelled, and one of a rollout tried again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.api.metrics import Metrics
from service.domain.artifact import ArtifactId
from service.domain.plan import RebuildQueue
from service.store import rebuild_progress, rebuilds
from service.store.rebuild_totals import Ended
from tests.api.rolling import advance, look, start
from tests.api.stack import Stack, eventually, running_stack, sse


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    """Two engines, the alias on the first; no rebuild is heard of by a worker."""
    with running_stack(database, rebuild_claim_s=30) as running:
        running.start_engine("a", alias=True)
        running.start_engine("b")
        running.bell.unheard = True
        yield running


def talked(stack: Stack) -> str:
    """A conversation with an answer, whose KV is stored."""
    chat = stack.conversation()
    stack.ask("one", conversation=chat)
    stack.await_artifacts(chat, 1)
    return chat


def listed(stack: Stack, **filters: str) -> list[dict[str, Any]]:
    answer = stack.admin.get("/admin/rebuilds", params=filters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def warming(stack: Stack) -> tuple[str, str]:
    """The rollout, and the rebuild that it asked for."""
    talked(stack)
    rollout = start(stack, stack.engines[1].revision, warm=1)
    for _ in range(2):
        advance(stack)
    [row] = listed(stack, rollout=rollout)
    return rollout, str(row["id"])


def test_the_queue_is_listed_by_state_queue_and_rollout(stack: Stack) -> None:
    rollout, rebuild = warming(stack)
    assert [row["id"] for row in listed(stack, state="queued", queue="background")] == [rebuild]
    assert listed(stack, state="done") == []
    assert listed(stack, queue="interactive") == []
    assert listed(stack, rollout="ro_0") == []
    found = stack.admin.get(f"/admin/rebuilds/{rebuild}").json()
    assert (found["rollout"], found["state"], found["queue"]) == (rollout, "queued", "background")


def test_a_cancelled_rebuild_lets_its_turn_go_on_where_it_is(stack: Stack) -> None:
    chat = talked(stack)
    stack.move_alias(stack.engines[1])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "two", conversation=chat)
        eventually(lambda: listed(stack, state="queued"))
        [row] = listed(stack, state="queued")
        cancelled = stack.admin.post(f"/admin/rebuilds/{row['id']}/cancel", json={"by": "ada"})
        answer = asked.result()
    assert (cancelled.json()["state"], cancelled.json()["reason"]) == ("failed", "cancelled by ada")
    assert (answer["revision"], answer["kv"]["source"]) == (stack.engines[1].revision, "none")
    again = stack.admin.post(f"/admin/rebuilds/{row['id']}/retry")
    assert (again.status_code, "goes on without it" in again.text) == (409, True)


def test_how_far_a_rebuild_is_shows_to_who_waits_and_to_operators(stack: Stack) -> None:
    chat = talked(stack)
    stack.move_alias(stack.engines[1])
    seen: list[dict[str, Any]] = []

    def ask() -> None:
        body = {"input": "two", "conversation": chat, "stream": True}
        with stack.http.stream("POST", "/v1/responses", json=body) as answer:
            for event in sse(answer):
                seen.append(event)  # noqa: PERF402 to be looked at while it grows

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        eventually(lambda: listed(stack, state="queued"))
        [row] = listed(stack, state="queued")
        with stack.database.begin() as conn:
            claim = rebuilds.claim(conn, rebuild=row["id"], owner="worker", lease_s=60)
            assert claim is not None
            part, boot = ArtifactId("kv_11111111"), stack.engines[1].boot
            rebuild_progress.move(conn, claim, artifact=part, engine_boot=boot, tokens=8, refusal=None)
        note = f"rebuilding: 8 of {row['tokens_total']} tokens"
        eventually(lambda: any(note in event.get("text", "") for event in seen))
        [running] = listed(stack, state="running")
        assert (running["tokens_done"], running["partials"]) == (8, [part])
        with stack.database.begin() as conn:
            rebuilds.fail(conn, rebuild=claim.rebuild, fence=claim.fence, reason="the test is over")
        asked.result()


def test_a_cancelled_warm_up_is_no_failure_and_can_be_tried_again(stack: Stack) -> None:
    rollout, rebuild = warming(stack)
    cancelled = stack.admin.post(f"/admin/rebuilds/{rebuild}/cancel", json={})
    assert cancelled.json()["state"] == "superseded"
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/cancel", json={}).status_code == 409
    assert look(stack, rollout)["troubles"]["failed_rebuilds"] == 0
    again = stack.admin.post(f"/admin/rebuilds/{rebuild}/retry")
    assert (again.json()["state"], again.json()["finished_at"]) == ("queued", None)
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/retry").status_code == 409
    stack.admin.post(f"/admin/rollouts/{rollout}/abort", json={})
    late = stack.admin.post(f"/admin/rebuilds/{rebuild}/retry")
    assert (late.status_code, "is aborted" in late.text) == (409, True)


def test_what_became_of_rebuilds_and_how_quick_they_are_is_counted(stack: Stack) -> None:
    def shown(name: str, queue: str, state: str = "") -> float | None:
        labels = f'queue="{queue}"' + (f',state="{state}"' if state else "")
        lines = stack.http.get("/metrics").text.splitlines()
        found = [line.split()[-1] for line in lines if line.startswith(f"everturn_{name}{{{labels}}}")]
        return float(found[0]) if found else None

    ended, rate = "rebuilds_ended_total", "rebuild_tokens_per_second"
    rollout, rebuild = warming(stack)
    assert (shown(rate, "background"), shown(rate, "interactive")) == (0.0, 0.0)
    assert shown(ended, "background", "superseded") is None
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/cancel", json={}).status_code == 200
    assert shown(ended, "background", "superseded") == 1.0
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/retry").status_code == 200
    assert shown(ended, "background", "superseded") == 1.0, "it does not fall"
    with stack.database.begin() as conn:
        claim = rebuilds.claim(conn, rebuild=rebuild, owner="worker", lease_s=60)
        assert claim is not None
        rebuilds.fail(conn, rebuild=rebuild, fence=claim.fence, reason="no engine")
    assert (shown(ended, "background", "failed"), shown(ended, "background", "superseded")) == (1.0, 1.0)
    stack.bell.unheard = False
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/retry").status_code == 200
    stack.bell.ring(rebuild, RebuildQueue.BACKGROUND)
    eventually(lambda: listed(stack, rollout=rollout, state="done"))
    assert shown(ended, "background", "done") == 1.0
    assert (shown(rate, "background") or 0.0) > 0


def test_the_count_of_what_has_ended_never_falls_and_counts_nothing_twice() -> None:
    metrics, labels = Metrics(), ("background", "failed")
    for number in (2, 1, 2, 3):
        metrics.show_rebuilds(Ended(recent={labels: number}), {})
    shown = metrics.exposition().decode().splitlines()
    assert 'everturn_rebuilds_ended_total{queue="background",state="failed"} 3.0' in shown


def test_an_unknown_rebuild_is_not_found(stack: Stack) -> None:
    for answer in (
        stack.admin.get("/admin/rebuilds/rb_0"),
        stack.admin.post("/admin/rebuilds/rb_0/cancel", json={}),
        stack.admin.post("/admin/rebuilds/rb_0/retry"),
    ):
        assert answer.status_code == 404
