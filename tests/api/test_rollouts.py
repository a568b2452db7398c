"""Rollouts over HTTP, under live turns, with engines whose words show any KV that is not their own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.domain.events import TurnPinned
from service.domain.rollout import place_of
from service.domain.rollout_events import RolloutId
from tests.api.rolling import CALM, advance, await_state, beating, look, move, start
from tests.api.stack import Stack, eventually, sse
from tests.engines.simulated import SimulatedEngine

CHATS, TALKERS = 12, 4


def said_cold(stack: Stack, engines: dict[str, SimulatedEngine], chat: str) -> bool:
    """Whether the last answer is what its engine says to the same prompt without any KV."""
    state = stack.state(chat)
    assert state.last is not None
    engine = engines[state.last.engine_revision]
    return state.last.text == engine.cold_text(state.window[: state.last.prompt_tokens])


def fleet_of_two(stack: Stack) -> tuple[SimulatedEngine, SimulatedEngine]:
    return stack.start_engine("a", alias=True), stack.start_engine("b")


def talked(stack: Stack, count: int) -> list[str]:
    chats = [stack.conversation() for _ in range(count)]
    for chat in chats:
        stack.ask("one", conversation=chat)
        stack.await_artifacts(chat, 1)
    return chats


def test_a_rollout_under_live_turns_fails_none_and_mixes_no_revisions(stack: Stack) -> None:
    old, new = fleet_of_two(stack)
    engines = {engine.revision: engine for engine in (old, new)}
    chats = talked(stack, CHATS)
    seen: list[tuple[str, str]] = []
    wrong: list[str] = []
    over = threading.Event()

    def talk(own: list[str]) -> None:
        while not over.is_set():
            for chat in own:
                answer = stack.ask("more", conversation=chat)
                seen.append((chat, answer["revision"]))
                if not said_cold(stack, engines, chat):
                    wrong.append(chat)

    with beating(stack), ThreadPoolExecutor(TALKERS) as pool:
        talkers = [pool.submit(talk, chats[place::TALKERS]) for place in range(TALKERS)]
        try:
            rollout = start(
                stack, new.revision, warm=CHATS, shift=[50, 100], hold_s=[1, 0], limits=CALM, reason="better"
            )
            await_state(stack, rollout, "done")
            moved_by = len(seen)
            eventually(lambda: len(seen) > moved_by + 2 * CHATS)
        finally:
            over.set()
        for talker in talkers:
            talker.result()
    assert wrong == []
    assert {revision for _, revision in seen} == {old.revision, new.revision}
    assert {revision for _, revision in seen[moved_by + TALKERS :]} == {new.revision}
    first_half = {chat for chat in chats if place_of(RolloutId(rollout), chat) < 50}
    for chat in chats:
        for event in stack.events(chat):
            if (
                isinstance(event, TurnPinned)
                and event.rollout == rollout
                and 2 <= (event.rollout_step or 0) < 3
            ):
                assert (event.revision == new.revision) is (chat in first_half), "shares are as asked"
    found = look(stack, rollout)
    assert found["warm"]["total"] == CHATS
    assert found["warm"]["done"] > 0
    assert found["troubles"] == CALM


def test_the_strategy_of_one_rollout_is_given_to_the_next_as_it_is_shown(stack: Stack) -> None:
    old, new = fleet_of_two(stack)
    asked = {"warm": 3, "warm_tokens_per_s": 900, "max_engine_load": 7, "drain": "never", "limits": CALM}
    first = start(stack, new.revision, shift=[50, 100], hold_s=[60, 0], **asked)
    shown = look(stack, first)["strategy"]
    move(stack, first, "abort")
    second = start(stack, new.revision, strategy=shown)
    assert look(stack, second)["strategy"] == shown
    move(stack, second, "abort")
    assert stack.alias_revision() == old.revision


def test_a_strategy_says_what_is_left_out_as_the_fields_do(stack: Stack) -> None:
    _, new = fleet_of_two(stack)
    plain = start(stack, new.revision)
    shown = look(stack, plain)["strategy"]
    move(stack, plain, "abort")
    assert look(stack, start(stack, new.revision, strategy={}))["strategy"] == shown


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"warm": 3}, "warm"),
        ({"hold_s": 5}, "hold_s"),
        ({"shift": [100]}, "shift"),
        ({"strategy": {"hold_s": 5}}, "strategy.hold_s"),
        ({"strategy": {"shift": [50, 100]}}, "strategy.shift[0]"),
        ({"strategy": {"shift": [{"percent": 50}]}}, "shift"),
    ],
)
def test_a_strategy_that_is_said_twice_or_badly_is_refused_by_name(
    shared_stack: Stack, more: dict[str, Any], named: str
) -> None:
    body = {"alias": "production", "to": "rev_" + "0" * 64, "strategy": {"warm": 1}} | more
    answer = shared_stack.admin.post("/admin/rollouts", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, named), answer.text


def test_r7_rolled_back_in_between_conversations_use_the_kv_of_before(stack: Stack) -> None:
    """Case R7."""
    old, new = fleet_of_two(stack)
    chats = talked(stack, 8)
    rollout = start(stack, new.revision, shift=[50, 100], hold_s=600)
    advance(stack)
    moved = next(chat for chat in chats if place_of(RolloutId(rollout), chat) < 50)
    assert stack.ask("two", conversation=moved)["revision"] == new.revision
    after = move(stack, rollout, "back", reason="worse at sums", by="ada")
    assert (after["back_of"], after["to"]) == (rollout, old.revision)
    answer = stack.ask("three", conversation=moved)
    assert (answer["revision"], answer["kv"]["source"]) == (old.revision, "reused")
    advance(stack)
    assert look(stack, after["rollout"])["state"] == "done"
    assert look(stack, rollout)["state"] == "rolled_back"


def test_r7_a_turn_that_waits_for_a_rebuild_goes_back_when_its_rollout_does(stack: Stack) -> None:
    """Case R7: what is superseded is not waited for."""
    old, new = fleet_of_two(stack)
    [chat] = talked(stack, 1)
    stack.bell.unheard = True
    rollout = start(stack, new.revision, drain="never")
    advance(stack)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "two", conversation=chat)
        eventually(lambda: stack.rung)
        move(stack, rollout, "back")
        advance(stack)
        answer = asked.result()
    assert (answer["revision"], answer["kv"]["source"]) == (old.revision, "reused")
    pins = [event for event in stack.events(chat) if isinstance(event, TurnPinned)]
    assert [pin.revision for pin in pins[1:]] == [new.revision, old.revision]
    assert said_cold(stack, {old.revision: old}, chat)


def test_r2_a_rollout_without_overlap_waits_and_its_turns_too(stack: Stack) -> None:
    """Case R2: stop, then start."""
    old, new = fleet_of_two(stack)
    [chat] = talked(stack, 1)
    stack.retire(new)
    stack.retire(old)
    rollout = start(stack, new.revision)
    advance(stack)
    assert look(stack, rollout)["waiting"] == f"no ready engine serves {new.revision}"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "two", conversation=chat)
        eventually(lambda: stack.state(chat).open_turn)
        stack.start_engine("b")
        advance(stack)
        answer = asked.result()
    assert answer["revision"] == new.revision
    assert answer["kv"]["plan"] == "rebuild"


def test_it_is_paused_resumed_and_stops_by_itself(stack: Stack) -> None:
    _, new = fleet_of_two(stack)
    [chat] = talked(stack, 1)
    rollout = start(stack, new.revision, hold_s=600, limits=CALM)
    advance(stack)
    assert move(stack, rollout, "pause", reason="lunch")["state"] == "paused"
    assert look(stack, rollout)["resumes_as"] == "shifting"
    assert move(stack, rollout, "resume")["state"] == "shifting"
    new.faults.abort = 1
    stack.ask("two", conversation=chat)
    advance(stack)
    found = look(stack, rollout)
    assert (found["state"], found["percent"]) == ("paused", 100)
    assert found["reason"] == "1 failed attempts on the target, more than the limit of 0"
    assert found["troubles"]["failed_attempts"] == 1


def test_aborting_returns_alias_engines_and_conversations(stack: Stack) -> None:
    old, new = fleet_of_two(stack)
    [chat] = talked(stack, 1)
    rollout = start(stack, new.revision)
    for _ in range(2):
        advance(stack)
    assert stack.alias_revision() == new.revision
    after = move(stack, rollout, "abort", reason="wrong file")
    assert (after["state"], after["ended_at"] is not None) == ("aborted", True)
    assert stack.ask("two", conversation=chat)["revision"] == old.revision


def test_what_an_operator_may_not_do_is_refused_with_the_way_out(stack: Stack) -> None:
    old, new = fleet_of_two(stack)
    post, put = stack.admin.post, stack.admin.put
    rollout = start(stack, new.revision)
    wanted = {"alias": "production", "to": new.revision}
    refused: list[tuple[Any, int, str]] = [
        (post("/admin/rollouts", json=wanted), 409, f"is in rollout {rollout}"),
        (put("/admin/aliases/production", json={"revision": new.revision}), 409, "force=true"),
        (post(f"/admin/rollouts/{rollout}/back", json={}), 409, "abort it"),
        (post(f"/admin/rollouts/{rollout}/resume", json={}), 409, "only: aborted, paused, stepped"),
        (post("/admin/rollouts/ro_0/pause", json={}), 404, "ro_0"),
        (stack.admin.get("/admin/rollouts/ro_0"), 404, "ro_0"),
        (stack.admin.get("/admin/rollouts/ro_0/events"), 404, "ro_0"),
        (post("/admin/rollouts", json=wanted | {"alias": "nightly"}), 404, "nightly"),
        (post("/admin/rollouts", json=wanted | {"shift": [50]}), 400, "end with 100"),
        (post("/admin/rollouts", json=wanted | {"shift": [50, 100], "hold_s": [1]}), 400, "hold_s"),
        (post("/admin/rollouts", json=wanted | {"from": new.revision}), 409, f"points at {old.revision}"),
        (post(f"/admin/rollouts/{rollout}/explode", json={}), 400, "how"),
    ]
    for answer, status, words in refused:
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"] + str(answer.json()["error"]["param"])
    forced = put("/admin/aliases/production", json={"revision": new.revision, "force": True})
    assert forced.status_code == 200
    assert look(stack, rollout)["state"] == "aborted"


def test_r4_an_engine_with_strict_conversations_is_retired_by_force_and_with_their_names(
    stack: Stack,
) -> None:
    """Case R4."""
    old, _ = fleet_of_two(stack)
    chats = [stack.conversation(on_upgrade="stay_strict") for _ in range(22)]
    for chat in chats:
        stack.ask("one", conversation=chat)
    for refused in (
        stack.admin.post(f"/admin/engines/{old.boot}/drain"),
        stack.admin.delete(f"/admin/engines/{old.boot}"),
    ):
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (409, "conversations_pinned")
        assert error["conversations"] == sorted(chats)[:20]
        assert error["conversations_count"] == 22
    forced = stack.admin.delete(f"/admin/engines/{old.boot}", params={"force": "true"})
    assert (forced.status_code, forced.json()["conversations"]) == (200, sorted(chats))


def test_r4_a_revision_with_strict_conversations_is_retired_by_force_and_with_their_names(
    stack: Stack,
) -> None:
    """Case R4, of a revision."""
    old, new = fleet_of_two(stack)
    chat = stack.conversation(on_upgrade="stay_strict")
    stack.ask("one", conversation=chat)
    stack.move_alias(new)
    path = f"/admin/revisions/{old.revision}/retire"
    refused = stack.admin.post(path)
    assert (refused.status_code, refused.json()["error"]["conversations"]) == (409, [chat])
    forced = stack.admin.post(path, params={"force": "true"})
    assert forced.json() == {
        "revision": old.revision,
        "engines": [old.boot],
        "conversations": [chat],
        "conversations_count": 1,
    }
    refused_turn = stack.post(input="two", conversation=chat)
    assert refused_turn.status_code == 503
    assert "stay_strict" in refused_turn.json()["error"]["message"]
    assert stack.admin.post(f"/admin/revisions/{new.revision}/retire").status_code == 409


def test_a_rollout_is_followed_to_its_end_and_taken_up_again(stack: Stack) -> None:
    _, new = fleet_of_two(stack)
    rollout = start(stack, new.revision, reason="better", by="ada")
    with beating(stack), stack.admin.stream("GET", f"/admin/rollouts/{rollout}/events") as answer:
        told = [event for event in sse(answer) if event["type"] != "comment"]
    names = [event["type"] for event in told if event["type"] != "rollout.progress"]
    assert names == ["rollout.started", "rollout.stepped", "rollout.stepped", "rollout.done"]
    assert (told[0]["by"], told[0]["reason"]) == ("ada", "better")
    assert told[-1]["state"] == "done"
    headers = {"last-event-id": "3"}
    with stack.admin.stream("GET", f"/admin/rollouts/{rollout}/events", headers=headers) as answer:
        assert [event["type"] for event in sse(answer)] == ["rollout.done", "rollout.progress"]
    listed = stack.admin.get("/admin/rollouts", params={"alias": "production"}).json()["data"]
    assert [one["rollout"] for one in listed] == [rollout]
    assert stack.admin.get("/admin/rollouts", params={"alias": "nightly"}).json()["data"] == []


def test_two_beats_at_once_take_one_step(stack: Stack) -> None:
    _, new = fleet_of_two(stack)
    rollout = start(stack, new.revision, shift=list(range(5, 101, 5)), hold_s=600)
    with ThreadPoolExecutor(4) as pool:
        for beat in [pool.submit(advance, stack) for _ in range(12)]:
            beat.result()
    found = look(stack, rollout)
    assert (found["step"], found["percent"]) == (1, 5)


def test_queues_and_rollouts_are_counted(stack: Stack) -> None:
    _, new = fleet_of_two(stack)
    talked(stack, 1)
    stack.bell.unheard = True
    rollout = start(stack, new.revision, warm=1)
    for _ in range(2):
        advance(stack)
    time.sleep(0.01)
    text = stack.client("").get("/metrics").text
    assert 'everturn_rollout_percent{alias="production",state="warming"} 0.0' in text
    assert 'everturn_rebuild_queue_depth{queue="background",state="queued"} 1.0' in text
    [oldest] = [
        line for line in text.splitlines() if line.startswith("everturn_rebuild_queue_oldest_seconds{")
    ]
    assert float(oldest.rsplit(" ", 1)[1]) > 0
    move(stack, rollout, "abort")
    text = stack.client("").get("/metrics").text
    assert "everturn_rollout_percent{" not in text
    assert "everturn_rebuild_queue_depth{" not in text


@pytest.mark.parametrize(("shift", "share"), [([10, 100], 10), ([50, 100], 50)])
def test_new_conversations_are_shared_out_as_asked(stack: Stack, shift: list[int], share: int) -> None:
    _, new = fleet_of_two(stack)
    rollout = start(stack, new.revision, shift=shift, hold_s=600)
    advance(stack)
    for _ in range(20):
        chat = stack.conversation()
        moved = stack.ask("one", conversation=chat)["revision"] == new.revision
        assert moved is (place_of(RolloutId(rollout), chat) < share)
