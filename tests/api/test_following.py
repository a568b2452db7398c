"""A turn that one process runs, read live in another: the same events under the same numbers, and the end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from sqlalchemy import text

from service.api.app import now
from service.domain.cuts import NUMBERS_APART, TAKEN_OVER
from service.domain.events import AttemptFailed, ConversationId, TurnId, TurnStreamed
from tests.api.stack import TENANT, Stack, deltas, eventually, names, running_stack, sse
from tests.api.test_resume import Events, check_every_number, resumed, said
from tests.flows.orphans import fail_as_orphan
from workers.turn_sweep import settle_orphans


def read_words(events: Events, more: object, count: int) -> None:
    while len(deltas(events).split()) < count:
        events.append(next(more))  # type: ignore[call-overload]


def test_its_text_comes_while_it_is_said_and_the_numbers_are_the_same(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    body = {"input": "hello", "stream": True}
    with (
        stack.second_server() as url,
        stack.http.stream("POST", "/v1/responses", json=body) as answer,
    ):
        origin = sse(answer)
        live: Events = [next(origin)]
        read_words(live, origin, 3)
        turn = live[0]["response"]["id"]
        with stack.http.stream("GET", f"{url}/v1/responses/{turn}?stream=true") as elsewhere:
            followed = sse(elsewhere)
            seen: Events = []
            read_words(seen, followed, 3)
            assert said(seen) == said(live)
            engine.faults.release.set()
            live, seen = said(live + list(origin)), said(seen + list(followed))
        assert seen == live
        check_every_number(stack, live, url)


def test_a_stream_of_one_in_the_background_says_why_it_waits_as_one_in_the_foreground_does(
    stack: Stack,
) -> None:
    engine = stack.start_engine("a", alias=True)
    stack.retire(engine)
    body = {"input": "hello", "stream": True, "background": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        events = sse(answer)
        told = until_told(events, "waiting: no ready engine serves")
        assert f"waiting: no ready engine serves {engine.revision}; 0 turns are before it" in told
        stack.start_engine("a")
        assert names(list(events))[-1] == "response.completed"


def test_a_stream_of_one_that_no_worker_has_taken_says_so_and_how_many_are_before_it(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    turns = [stack.post(input="hello", background=True).json()["id"] for _ in range(2)]
    with stack.http.stream("GET", f"/v1/responses/{turns[1]}?stream=true") as answer:
        events = sse(answer)
        assert until_told(events, "; 1 turn").endswith('"waiting: for a worker; 1 turn is before it"')
        for turn in turns:
            stack.turn_bell.work(turn)
        assert names(list(events))[-1] == "response.completed"


def test_one_that_runs_elsewhere_says_that_it_waits_for_its_next_attempt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    engine.faults.die_after = 3
    chat = stack.conversation()
    with stack.second_server() as url, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "hello", conversation=chat)
        eventually(lambda: engine.faults.hold_after is None)
        open_turn = stack.state(chat).open_turn
        assert open_turn is not None
        with stack.http.stream("GET", f"{url}/v1/responses/{open_turn.id}?stream=true") as elsewhere:
            followed = sse(elsewhere)
            stack.retire(engine)
            engine.faults.release.set()
            until_told(followed, f"waiting: no ready engine serves {engine.revision}; 0 turns are before it")
            stack.start_engine("a")
            assert names(list(followed))[-1] == "response.completed"
        assert asked.result()["status"] == "completed"


def until_told(events: Iterator[dict[str, Any]], words: str) -> str:
    """The first comment that has them."""
    return next(str(event["text"]) for event in events if words in event.get("text", ""))


def test_it_is_joined_at_any_number(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 4
    body = {"input": "hello", "stream": True}
    with (
        stack.second_server() as url,
        stack.http.stream("POST", "/v1/responses", json=body) as answer,
        ExitStack() as exits,
    ):
        origin = sse(answer)
        live: Events = [next(origin)]
        read_words(live, origin, 4)
        turn = live[0]["response"]["id"]
        joined = {}
        for number in (0, 3, 5, 6):
            again = f"{url}/v1/responses/{turn}?stream=true&starting_after={number}"
            events = sse(exits.enter_context(stack.http.stream("GET", again)))
            joined[number] = [next(events)], events
        engine.faults.release.set()
        live = said(live + list(origin))
        for number, (first, events) in joined.items():
            assert said(first + list(events)) == live[number + 1 :]


def test_one_that_is_not_streamed_is_followed_to_its_end(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    conversation = stack.conversation()
    with stack.second_server() as url, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(stack.ask, "hello", conversation=conversation)
        eventually(lambda: engine.faults.hold_after is None)
        open_turn = stack.state(conversation).open_turn
        assert open_turn is not None
        elsewhere = pool.submit(resumed, stack, open_turn.id, None, url)
        engine.faults.release.set()
        response = asked.result()
        events = elsewhere.result()
    assert names(events).count("response.output_text.delta") == 1
    assert events[-1]["response"] == response


def test_what_nobody_reads_any_more_is_followed_no_longer(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    turn = stack.post(input="hello", background=True).json()["id"]
    followed = stack.server._app.state.service.runner._follower._followed
    with stack.http.stream("GET", f"/v1/responses/{turn}?stream=true") as answer:
        events = sse(answer)
        next(events)
        assert turn in followed
        eventually(lambda: followed[turn][0].readers == 1)
    eventually(lambda: turn not in followed)


def test_nothing_is_left_of_it_when_it_has_ended(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        origin = sse(answer)
        next(origin)
        eventually(lambda: chunks(stack) > 0)
        engine.faults.release.set()
        list(origin)
    assert chunks(stack) == 0


def test_erasing_its_conversation_ends_it_and_forgets_what_it_had_said(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body):
        eventually(lambda: chunks(stack) > 0)
        erased = stack.admin.delete(f"/admin/conversations/{conversation}/content", params={"tenant": TENANT})
        assert erased.is_success, erased.text
        assert chunks(stack) == 0
        engine.faults.release.set()
    with stack.owner.begin() as conn:
        query = text("SELECT count(*) FROM event_contents WHERE stream = :stream")
        assert conn.execute(query, {"stream": conversation}).scalar_one() == 0


def test_a_turn_that_is_lost_to_another_process_is_followed_for_who_waits_for_it(database: str) -> None:
    with running_stack(database, turn_lease_s=0.6) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 3
        conversation = stack.conversation()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.post, input="hello", conversation=conversation)
            eventually(lambda: engine.faults.hold_after is None)
            take_away(stack)
            answer = asked.result()
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["attempt"]) == ("completed", 2)


def take_away(stack: Stack) -> None:
    """As if its process had been silent for the time of a lease. That renews it: what is locked for it is not settled then."""
    with stack.owner.begin() as conn:
        conn.execute(
            text("UPDATE turns SET lease_expires_at = clock_timestamp() - interval '1 h' WHERE NOT closed")
        )
        conn.execute(text("UPDATE turns SET owner = 'gone' WHERE NOT closed"))
    settled: list[TurnId] = []

    def settle() -> bool:
        settled.extend(settle_orphans(stack.database, finish=True))
        return bool(settled)

    eventually(settle)
    for turn in settled:
        stack.turn_bell.work(turn)


def test_its_stream_goes_on_behind_a_gap_that_says_who_has_what(database: str) -> None:
    with running_stack(database, turn_lease_s=0.6) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 3
        conversation = stack.conversation()
        body = {"input": "hello", "stream": True, "conversation": conversation}
        with stack.http.stream("POST", "/v1/responses", json=body) as answer:
            origin = sse(answer)
            live: Events = [next(origin)]
            read_words(live, origin, 3)
            eventually(lambda: chunks(stack) > 0)
            take_away(stack)
            live = said(live + list(origin))
        assert deltas(live) == engine.cold_text(engine.prompts[0])
        places = [event["sequence_number"] for event in live]
        jumps = [after - before for before, after in pairwise(places)]
        assert sorted(jumps)[-2:] == [1, NUMBERS_APART + 1]
        assert live[-1]["type"] == "response.completed"
        assert resumed(stack, live[0]["response"]["id"]) == live


def test_a_stop_hands_turns_over_with_all_that_was_said(database: str) -> None:
    with running_stack(database, shutdown_s=0.2) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 2
        stack.turn_bell.unheard = True
        conversation = stack.conversation()
        body = {"input": "hello", "stream": True, "conversation": conversation}
        with stack.http.stream("POST", "/v1/responses", json=body) as answer:
            turn = next(sse(answer))["response"]["id"]
            eventually(lambda: engine.faults.hold_after is None)
        stack.server.stop()
        assert stack.turn_bell.rung == [turn]
        last = stack.events(conversation)[-1]
        assert isinstance(last, AttemptFailed)
        assert len(last.partial_text.split()) == 2


def test_a_streams_cuts_are_recorded_though_the_process_that_made_them_is_gone(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        turn = TurnId(next(sse(answer))["response"]["id"])
        eventually(lambda: chunks(stack) > 0)
        with stack.database.begin() as conn:
            fail_as_orphan(conn, TENANT, ConversationId(conversation), turn, now())
        engine.faults.release.set()
    [streamed] = [event for event in stack.events(conversation) if isinstance(event, TurnStreamed)]
    assert streamed.pieces[-1] == TAKEN_OVER
    assert len(streamed.text.split()) == len(streamed.pieces) - 1


def chunks(stack: Stack) -> int:
    with stack.database.begin() as conn:
        return int(conn.execute(text("SELECT count(*) FROM turn_chunks WHERE pieces <> ''")).scalar_one())
