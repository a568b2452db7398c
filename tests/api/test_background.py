"""Responses in the background: accepted at once, run by a worker, read from any process, cancelled from any process."""

import json
from typing import Any

import pytest

from service.api.app import create_app
from service.domain.events import TurnCompleted, TurnStarted
from service.domain.plan import RebuildQueue
from service.queue import TURN_TASK, Doorbell
from stack.valkey import EmbeddedValkey
from tests.api.stack import Stack, deltas, eventually, names, running_stack, sse
from tests.api.test_resume import check_every_number, resumed, said
from tests.engines.http_server import HttpServer
from tests.workers.brokers import client_of


def start(stack: Stack, text: str = "hello", **body: Any) -> dict[str, Any]:
    answer = stack.post(input=text, background=True, **body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def read(stack: Stack, turn: str, url: str = "") -> dict[str, Any]:
    answer = stack.http.get(f"{url}/v1/responses/{turn}")
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def until(stack: Stack, turn: str, status: str, url: str = "") -> dict[str, Any]:
    eventually(lambda: read(stack, turn, url)["status"] == status)
    return read(stack, turn, url)


def test_it_is_queued_at_once_and_completed_later(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    response = start(stack)
    assert (response["status"], response["background"], response["output"]) == ("queued", True, [])
    until(stack, response["id"], "in_progress")
    engine.faults.release.set()
    answer = until(stack, response["id"], "completed")
    assert answer["background"] is True
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[0])


def test_what_is_not_in_the_background_says_so(shared_stack: Stack) -> None:
    assert shared_stack.ask("hello", background=False)["background"] is False


def test_its_conversation_takes_no_other_turn_meanwhile(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    conversation = stack.conversation()
    start(stack, conversation=conversation)
    refused = stack.post(input="and now?", conversation=conversation)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "conversation_locked")


def test_nobody_is_needed_to_wait_for_an_engine_but_the_worker(database: str) -> None:
    with running_stack(database, turn_wait_s=0.3) as stack:
        engine = stack.start_engine("a", alias=True)
        stack.retire(engine)
        response = start(stack)
        failed = until(stack, response["id"], "failed")
        assert failed["error"]["code"] == "no_engine"


def test_it_waits_for_a_worker_until_there_is_one(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    response = start(stack)
    assert read(stack, response["id"])["status"] == "queued"
    assert stack.turn_bell.rung == [response["id"]]
    stack.turn_bell.work(response["id"])
    until(stack, response["id"], "completed")


def test_it_is_rung_for_in_the_interactive_queue(stack: Stack, valkey_server: EmbeddedValkey) -> None:
    stack.start_engine("a", alias=True)
    broker = valkey_server.url(8)
    doorbell = Doorbell(broker)
    app = create_app(stack.settings, ring=doorbell.ring, ring_turn=doorbell.ring_turn)
    server = HttpServer(app).start()
    body = {"input": "hello", "background": True}
    turn = stack.http.post(f"{server.url}/v1/responses", json=body).json()["id"]
    with client_of(broker) as client:
        eventually(lambda: client.llen(RebuildQueue.INTERACTIVE))
        [message] = client.lrange(RebuildQueue.INTERACTIVE, 0, -1)
        assert client.llen(RebuildQueue.BACKGROUND) == 0
    headers = json.loads(message)["headers"]
    assert (headers["task"], turn in headers["argsrepr"]) == (TURN_TASK, True)
    server.stop()
    doorbell.close()


def test_rung_for_twice_it_is_run_once(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    conversation = stack.conversation()
    turn = start(stack, conversation=conversation)["id"]
    for _ in range(3):
        stack.turn_bell.work(turn)
    until(stack, turn, "completed")
    assert len(engine.prompts) == 1
    assert sum(isinstance(event, TurnCompleted) for event in stack.events(conversation)) == 1


def test_the_record_says_that_it_was_asked_for_so(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    until(stack, start(stack, "two", conversation=conversation)["id"], "completed")
    started = [event for event in stack.events(conversation) if isinstance(event, TurnStarted)]
    assert [event.terms is not None and event.terms.background for event in started] == [False, True]


def test_the_same_request_again_shows_the_same_response(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    headers = {"idempotency-key": "once"}
    first = start(stack, headers=headers)
    until(stack, first["id"], "completed")
    again = start(stack, headers=headers)
    assert (again["id"], again["status"]) == (first["id"], "completed")
    assert len(engine.prompts) == 1


def test_the_next_turn_goes_on_from_it(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = start(stack)
    until(stack, first["id"], "completed")
    after = stack.ask("and then?", previous_response_id=first["id"])
    assert after["conversation"] == first["conversation"]


@pytest.mark.parametrize("begun", [False, True])
def test_it_is_cancelled_from_another_process(stack: Stack, begun: bool) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    stack.turn_bell.unheard = not begun
    response = start(stack)
    if begun:
        eventually(lambda: engine.faults.hold_after is None)
    with stack.second_server() as url:
        answer = stack.http.post(f"{url}/v1/responses/{response['id']}/cancel")
        assert answer.json()["status"] == "cancelled"
    if begun:
        eventually(lambda: engine.left)
    else:
        stack.turn_bell.work(response["id"])
    engine.faults.release.set()
    assert read(stack, response["id"])["status"] == "cancelled"
    assert len(engine.prompts) == begun


def test_a_stream_of_it_is_live_in_any_process_and_resumed_at_every_number(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 4
    turn = start(stack)["id"]
    query = {"stream": "true"}
    with (
        stack.second_server() as url,
        stack.http.stream("GET", f"{url}/v1/responses/{turn}", params=query) as answer,
    ):
        events = sse(answer)
        live = [next(events)]
        while len(deltas(live).split()) < 4:
            live.append(next(events))
        assert read(stack, turn)["status"] == "in_progress"
        engine.faults.release.set()
        live = said(live + list(events))
        assert deltas(live) == engine.cold_text(engine.prompts[0])
        check_every_number(stack, live)
        check_every_number(stack, live, url)
    opening = ["response.created", "response.queued", "response.in_progress"]
    assert names(live)[:3] == opening
    assert [event["response"]["status"] for event in live[:3]] == ["queued", "queued", "in_progress"]
    assert names(live)[-1] == "response.completed"


def test_a_stream_may_be_asked_for_with_it(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    live = said(stack.stream("hello", background=True))
    assert names(live)[1] == "response.queued"
    assert deltas(live) == engine.cold_text(engine.prompts[0])
    check_every_number(stack, live)


def test_a_stream_of_one_that_is_cancelled_before_it_was_begun(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    turn = start(stack)["id"]
    query = {"stream": "true"}
    with stack.http.stream("GET", f"/v1/responses/{turn}", params=query) as answer:
        events = sse(answer)
        live = [next(events)]
        while live[-1]["type"] != "comment" or "waiting" not in live[-1]["text"]:
            live.append(next(events))
        stack.http.post(f"/v1/responses/{turn}/cancel")
        live = said(live + list(events))
    assert names(live) == ["response.created", "response.queued", "response.failed"]
    assert live[-1]["response"]["status"] == "cancelled"
    check_every_number(stack, live)


def test_the_client_that_began_its_stream_may_go(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 3
    body = {"input": "hello", "stream": True, "background": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        turn = next(sse(answer))["response"]["id"]
    engine.faults.release.set()
    response = until(stack, turn, "completed")
    assert deltas(resumed(stack, turn)) == response["output"][0]["content"][0]["text"]


def test_without_being_stored_it_is_refused(shared_stack: Stack) -> None:
    answer = shared_stack.post(input="hello", background=True, store=False)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "background")


def test_the_official_client_polls_and_resumes(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    client = stack.openai
    response = client.responses.create(model="production", input="hello", background=True)
    assert response.status == "queued"
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text == engine.cold_text(engine.prompts[0])
    live = list(client.responses.create(model="production", input="hello", background=True, stream=True))
    created = live[0]
    assert created.type == "response.created"
    again = list(client.responses.retrieve(created.response.id, stream=True, starting_after=4))
    assert again == live[5:]


def test_a_rebuild_that_it_needs_is_made_by_the_worker_itself(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("a history that is long enough to be rebuilt", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    new = stack.start_engine("b", alias=True)
    stack.bell.unheard = True
    turn = start(stack, "and now?", conversation=conversation)["id"]
    answer = until(stack, turn, "completed")
    assert answer["kv"]["source"] == "rebuilt"
    assert answer["revision"] == new.revision
    assert stack.rung == []
