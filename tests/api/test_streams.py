"""Streams: OpenAI's events in OpenAI's order, and turns that go on when nobody listens any more."""

from concurrent.futures import ThreadPoolExecutor

from service.api.app import now
from service.domain.events import AttemptFailed, ConversationId, TurnFailed, TurnStreamed
from service.domain.turn import TurnState
from tests.api.stack import TENANT, Stack, deltas, eventually, names, running_stack, sse
from tests.flows.orphans import fail_as_orphan
from workers.turn_sweep import settle_orphans

IN_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def test_the_events_come_in_openais_order_and_numbered(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.pause_s = 0.02
    events = [e for e in stack.stream("hello") if e["type"] != "comment"]
    assert list(dict.fromkeys(names(events))) == IN_ORDER
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert deltas(events) == engine.cold_text(engine.prompts[0])
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []


def test_the_last_event_holds_what_reading_it_back_gives(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    response = stack.stream("hello")[-1]["response"]
    assert stack.http.get(f"/v1/responses/{response['id']}").json() == response


def test_all_events_of_one_item_name_the_item_that_is_stored(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    events = stack.stream("hello", conversation=conversation)
    named = {e["item_id"] for e in events if "item_id" in e} | {
        e["item"]["id"] for e in events if "item" in e
    }
    assert named == {stack.state(conversation).items[-1].id}


def test_text_comes_while_the_engine_is_still_at_it(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = sse(answer)
        seen = []
        for event in events:
            seen.append(event)
            if deltas(seen).count(" ") == 2:
                break
        assert not engine.faults.release.is_set()
        engine.faults.release.set()
        seen += list(events)
    assert deltas(seen) == engine.cold_text(engine.prompts[0])


def test_a_stream_that_waits_for_an_engine_shows_that_it_lives(stack: Stack) -> None:
    stack.retire(stack.start_engine("a", alias=True))
    late = None
    comments = []
    body = {"input": "hello", "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        for event in sse(answer):
            if event["type"] == "comment" and late is None:
                comments.append(event["text"])
                late = stack.start_engine("a")
    assert "no ready engine" in comments[0]
    assert comments[0].startswith("response.in_progress")
    assert event["type"] == "response.completed"


def test_a_client_that_leaves_does_not_end_the_turn(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    conversation = stack.conversation()
    body = {"input": "hello", "stream": True, "conversation": conversation}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        response = next(sse(answer))["response"]
    eventually(lambda: engine.faults.hold_after is None)
    engine.faults.release.set()
    eventually(lambda: stack.http.get(f"/v1/responses/{response['id']}").json()["status"] == "completed")
    turn = stack.state(conversation).turns[response["id"]]
    assert turn.state is TurnState.COMPLETED


def test_a_stop_of_the_service_lets_a_running_turn_finish(database: str) -> None:
    with running_stack(database) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.pause_s = 0.1
        conversation = stack.conversation()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.ask, "hello", conversation=conversation)
            eventually(lambda: engine.prompts)
            stack.server.stop()
            assert asked.result()["status"] == "completed"


def test_a_restarted_service_still_has_every_response(database: str) -> None:
    with running_stack(database) as stack:
        stack.start_engine("a", alias=True)
        before = stack.ask("hello")
        stack.server.stop()
        with stack.second_server() as url:
            answer = stack.http.get(f"{url}/v1/responses/{before['id']}")
        assert answer.json() == before


def test_a_turn_cut_off_by_a_stop_ends_as_an_orphan(database: str) -> None:
    with running_stack(database, shutdown_s=0.2, turn_lease_s=0.5, on_orphan="fail") as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 2
        conversation = stack.conversation()
        body = {"input": "hello", "stream": True, "conversation": conversation}
        with stack.http.stream("POST", "/v1/responses", json=body):
            eventually(lambda: engine.faults.hold_after is None)
        stack.server.stop()
        eventually(lambda: swept(stack, conversation))
        assert [type(e) for e in stack.events(conversation)][-3:] == [AttemptFailed, TurnStreamed, TurnFailed]


def swept(stack: Stack, conversation: str) -> bool:
    settle_orphans(stack.database, finish=False)
    return isinstance(stack.events(conversation)[-1], TurnFailed)


def test_a_lost_lease_stops_the_work_that_could_not_be_accepted(database: str) -> None:
    with running_stack(database, turn_lease_s=0.3) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 2
        conversation = stack.conversation()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stack.post, input="hello", conversation=conversation)
            eventually(lambda: engine.faults.hold_after is None)
            turn = stack.state(conversation).open_turn
            assert turn is not None
            with stack.database.begin() as conn:
                fail_as_orphan(conn, TENANT, ConversationId(conversation), turn.id, now())
            answer = asked.result()
            engine.faults.release.set()
        assert answer.json()["error"]["code"] == "orphaned"
