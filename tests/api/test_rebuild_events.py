"""A stream says that it waits for a rebuild: once, by an event that the record gives again at every number."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from service.domain.events import TurnPinned
from service.store import rebuilds
from tests.api.rolling import advance, start
from tests.api.stack import Stack, deltas, eventually, names, running_stack, sse
from tests.api.test_resume import Events, check_every_number, resumed, said
from tests.engines.simulated import SimulatedEngine

AWAITED = "everturn.rebuild"


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database, rebuild_claim_s=30) as running:
        yield running


def upgraded(stack: Stack) -> tuple[str, SimulatedEngine]:
    """A conversation with KV of a revision that its next turn is not on any more, and the engine of that."""
    stack.start_engine("a", alias=True)
    chat = stack.conversation()
    stack.ask("one", conversation=chat)
    stack.await_artifacts(chat, 1)
    return chat, stack.start_engine("b", alias=True)


def awaited(events: Events) -> list[int]:
    """The attempts that said that they wait for one."""
    return [event["attempt"] for event in events if event["type"] == AWAITED]


def active(stack: Stack) -> str:
    """The rebuild that is waited for now."""
    found: list[str] = []

    def look() -> bool:
        with stack.owner.begin() as conn:
            query = "SELECT rebuild_id FROM rebuilds WHERE state IN ('queued', 'running') AND queue = 'interactive'"
            found[:] = conn.execute(text(query)).scalars()
        return bool(found)

    eventually(look)
    [rebuild] = found
    return rebuild


def withdraw(stack: Stack, rebuild: str) -> None:
    assert stack.admin.post(f"/admin/rebuilds/{rebuild}/cancel", json={}).is_success


def test_it_says_what_it_waits_for_before_anything_of_the_answer(stack: Stack) -> None:
    chat, engine = upgraded(stack)
    before = stack.state(chat)
    live = said(stack.stream("two", conversation=chat))
    assert names(live)[:4] == [
        "response.created",
        "response.in_progress",
        AWAITED,
        "response.output_item.added",
    ]
    [pinned] = [e for e in stack.events(chat) if isinstance(e, TurnPinned) and e.rebuild]
    last = before.last
    assert last is not None
    assert live[2] == {
        "type": AWAITED,
        "sequence_number": 2,
        "attempt": 1,
        "rebuild": pinned.rebuild,
        "revision": engine.revision,
        "previous_revision": last.engine_revision,
        "tokens_total": before.window_tokens,
        "reason": f"revision changed from {last.engine_revision}: replay {before.window_tokens} tokens",
    }
    assert live[-1]["response"]["kv"]["source"] == "rebuilt"


def test_at_every_number_of_a_completed_stream_also_after_a_restart(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    live = said(stack.stream("two", conversation=chat))
    assert awaited(live) == [1]
    check_every_number(stack, live)
    with stack.second_server() as url:
        check_every_number(stack, live, url)


def test_a_turn_that_waits_for_none_says_nothing(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    stack.ask("two", conversation=chat)
    assert awaited(stack.stream("three", conversation=chat)) == []


def test_at_every_number_of_one_in_the_background(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    live = said(stack.stream("two", conversation=chat, background=True))
    assert names(live)[:4] == ["response.created", "response.queued", "response.in_progress", AWAITED]
    check_every_number(stack, live)
    with stack.second_server() as url:
        check_every_number(stack, live, url)


def test_one_that_was_not_streamed_says_it_too(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    response = stack.ask("two", conversation=chat)
    events = resumed(stack, response["id"])
    assert names(events)[:4] == [
        "response.created",
        "response.in_progress",
        AWAITED,
        "response.output_item.added",
    ]
    check_every_number(stack, events)


def test_at_every_number_of_one_that_is_cancelled_while_it_waits(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    stack.bell.unheard = True
    live: Events = []
    body = {"input": "two", "conversation": chat, "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        for event in sse(answer):
            live.append(event)
            if event["type"] == AWAITED:
                turn = live[0]["response"]["id"]
                assert stack.http.post(f"/v1/responses/{turn}/cancel").is_success
    live = said(live)
    assert names(live) == ["response.created", "response.in_progress", AWAITED, "response.failed"]
    check_every_number(stack, live)


def test_at_every_number_of_one_that_fails_after_it_waited(stack: Stack) -> None:
    chat, engine = upgraded(stack)
    stack.bell.unheard = True
    engine.faults.forget = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "two", conversation=chat)
        eventually(lambda: asked.done() or active(stack))
        withdraw(stack, active(stack))
        stack.bell.unheard = False
        live = said(asked.result())
    assert live[-1]["type"] == "response.failed"
    check_every_number(stack, live)


def test_a_second_attempt_says_it_anew_and_only_if_it_waits(stack: Stack) -> None:
    """The first goes on without its rebuild, and its engine dies; of the others, the second rebuilds, and the third finds that KV."""
    chat, first = upgraded(stack)
    stack.bell.unheard = True
    others = [stack.start_engine("b", boot=f"boot_{number}") for number in range(2)]
    for engine in (first, *others):
        engine.faults.die_after = 2
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.stream, "two", conversation=chat)
        rebuild = active(stack)
        stack.bell.unheard = False
        withdraw(stack, rebuild)
        live = said(asked.result())
    assert awaited(live) == [1, 2]
    kinds = names(live)
    begun = [number for number, kind in enumerate(kinds) if kind == "everturn.attempt"]
    assert [kinds[number + 1] == AWAITED for number in begun] == [True, False]
    check_every_number(stack, live)
    with stack.second_server() as url:
        check_every_number(stack, live, url)


def test_who_reads_it_in_another_process_is_told_while_it_waits_and_how_far_it_is(stack: Stack) -> None:
    chat, _ = upgraded(stack)
    stack.bell.unheard = True
    body = {"input": "two", "conversation": chat, "stream": True}
    with (
        stack.second_server() as url,
        stack.http.stream("POST", "/v1/responses", json=body) as answer,
    ):
        origin = sse(answer)
        live: Events = [next(origin)]
        turn = live[0]["response"]["id"]
        rebuild = active(stack)
        seen: list[dict[str, Any]] = []
        with stack.http.stream("GET", f"{url}/v1/responses/{turn}?stream=true") as elsewhere:
            followed = sse(elsewhere)
            while not any("rebuilding: 0 of" in event.get("text", "") for event in seen):
                seen.append(next(followed))
            assert names(seen) == ["response.created", "response.in_progress", AWAITED]
            stack.bell.work(rebuild)
            live, seen = said(live + list(origin)), said(seen + list(followed))
    assert seen == live
    assert deltas(live)
    assert awaited(live) == [1]


def test_a_turn_with_a_short_history_waits_for_the_warm_up_that_is_at_it(database: str) -> None:
    with running_stack(database, rebuild_min_tokens=600, rebuild_claim_s=30) as stack:
        stack.start_engine("a", alias=True)
        chat = stack.conversation()
        stack.ask(" ".join(["said"] * 40), conversation=chat)
        assert 120 < stack.state(chat).window_tokens < 600
        target = stack.start_engine("b")
        stack.bell.unheard = True
        start(stack, target.revision, warm=1)
        for _ in range(2):
            advance(stack)
        [rebuild] = stack.rung
        with stack.database.begin() as conn:
            assert rebuilds.claim(conn, rebuild=rebuild, owner="worker", lease_s=60) is not None
        body = {"conversation": chat, "headers": {"x-everturn-revision": target.revision}}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.stream, "two", **body)
            assert active(stack) == rebuild
            with stack.owner.begin() as conn:
                conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp()"))
            stack.bell.work(rebuild)
            live = said(asked.result())
    assert (live[2]["type"], live[2]["rebuild"]) == (AWAITED, rebuild)
    assert "a warm-up is at its" in live[2]["reason"]
    assert live[-1]["response"]["kv"]["source"] == "rebuilt"
