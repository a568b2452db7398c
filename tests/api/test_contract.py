"""Every object and stream event, as the service really answers it, held against OpenAI's own specification."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.api.stack import Stack, eventually, running_stack, sse
from tests.api.test_resume import said
from tests.api.test_tools import CALL, WEATHER, output_of

SPEC = json.loads(Path(__file__).with_name("openapi").joinpath("openai.json").read_text("utf-8"))

EVENTS = {
    "response.created": "ResponseCreatedEvent",
    "response.queued": "ResponseQueuedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.reasoning_text.delta": "ResponseReasoningTextDeltaEvent",
    "response.reasoning_text.done": "ResponseReasoningTextDoneEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
    "response.failed": "ResponseFailedEvent",
}


def breaches(kind: str, document: object) -> list[str]:
    """Deviation: `usage` is null before there is an answer, as OpenAI's own service has it; its specification knows no null there."""
    schema = {"$ref": f"#/components/schemas/{kind}", "components": SPEC["components"]}
    return [
        f"{e.json_path}: {e.message[:300]}"
        for e in Draft202012Validator(schema).iter_errors(without_null_usage(document))
    ]


def without_null_usage(document: Any) -> Any:
    if isinstance(document, list):
        return [without_null_usage(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        key: without_null_usage(value) for key, value in document.items() if (key, value) != ("usage", None)
    }


def check_events(events: list[dict[str, Any]]) -> None:
    for event in events:
        if not event["type"].startswith("everturn."):
            assert breaches(EVENTS[event["type"]], event) == []


@pytest.fixture
def path(shared_stack: Stack) -> str:
    items = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "yes?"},
        {"role": "developer", "content": "be brief"},
    ]
    return f"/v1/conversations/{shared_stack.conversation(items=items, metadata={'a': 'b'})}"


def test_conversations_and_items(shared_stack: Stack, path: str) -> None:
    http = shared_stack.http
    assert breaches("ConversationResource", http.get(path).json()) == []
    changed = http.post(path, json={"metadata": {"c": "d"}}).json()
    assert breaches("ConversationResource", changed) == []
    listed = http.get(f"{path}/items").json()
    assert len(listed["data"]) == 3
    assert breaches("ConversationItemList", listed) == []
    added = http.post(f"{path}/items", json={"items": [{"role": "user", "content": "x"}]}).json()
    assert breaches("ConversationItemList", added) == []
    item = f"{path}/items/{added['first_id']}"
    assert breaches("ConversationItem", http.get(item).json()) == []
    assert breaches("ConversationResource", http.delete(item).json()) == []
    assert breaches("DeletedConversationResource", http.delete(path).json()) == []


def test_responses_and_what_is_read_of_them(shared_stack: Stack) -> None:
    completed = shared_stack.ask("hello", instructions="be brief", metadata={"a": "b"})
    assert breaches("Response", completed) == []
    assert breaches("Response", shared_stack.ask("hello", max_output_tokens=1)) == []
    http, path = shared_stack.http, f"/v1/responses/{completed['id']}"
    assert breaches("ResponseItemList", http.get(f"{path}/input_items").json()) == []
    counted = http.post("/v1/responses/input_tokens", json={"input": "hello"}).json()
    assert breaches("TokenCountsResource", counted) == []


def test_the_events_of_a_completed_and_of_an_incomplete_stream(shared_stack: Stack) -> None:
    for most in (100, 2):
        check_events(said(shared_stack.stream("hello", max_output_tokens=most)))


def test_the_events_of_one_in_the_background(shared_stack: Stack) -> None:
    events = said(shared_stack.stream("hello", background=True))
    assert events[1]["type"] == "response.queued"
    check_events(events)
    assert breaches("Response", shared_stack.post(input="hello", background=True).json()) == []


def test_items_of_every_kind_and_the_events_that_tell_them(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.reasons, engine.faults.says = True, [f"<think>hm</think>Let me see.{CALL}"]
    events = said(stack.stream("weather?", tools=[WEATHER], tool_choice="required"))
    check_events(events)
    response = events[-1]["response"]
    http, path = stack.http, f"/v1/conversations/{response['conversation']['id']}/items"
    added = http.post(path, json={"items": [output_of(response)]}).json()
    assert breaches("ConversationItemList", added) == []
    listed = http.get(path).json()
    assert [item["type"] for item in listed["data"]] == [
        *("function_call_output", "function_call", "message", "reasoning", "message")
    ]
    assert breaches("ConversationItemList", listed) == []
    for item in listed["data"]:
        assert breaches("ConversationItem", http.get(f"{path}/{item['id']}").json()) == []
    given = stack.post(input=[*response["output"], output_of(response)], tools=[WEATHER]).json()
    assert breaches("Response", given) == []
    echoed = http.get(f"/v1/responses/{given['id']}/input_items").json()
    assert breaches("ResponseItemList", echoed) == []


def test_a_cancelled_response_and_its_stream(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    with stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = sse(answer)
        first = next(events)
        eventually(lambda: engine.faults.hold_after is None)
        running = stack.http.get(f"/v1/responses/{first['response']['id']}").json()
        cancelled = stack.http.post(f"/v1/responses/{running['id']}/cancel").json()
        engine.faults.release.set()
        check_events([first, *said(list(events))])
    assert running["status"] == "in_progress"
    assert breaches("Response", running) == []
    assert breaches("Response", cancelled) == []


def test_a_failed_response_differs_only_in_the_codes_of_its_error(database: str) -> None:
    """Deviation: OpenAI's list of codes has none for what can happen here."""
    with running_stack(database, turn_wait_s=0) as stack:
        stack.retire(stack.start_engine("a", alias=True))
        failed = said(stack.stream("hello"))[-1]
    response = failed["response"]
    assert response["error"]["code"] == "no_engine"
    assert breaches("Response", response | {"error": response["error"] | {"code": "server_error"}}) == []
    assert [b.partition(":")[0] for b in breaches("Response", response)] == ["$.error"]


@pytest.mark.parametrize(
    ("method", "where", "body", "status"),
    [
        ("GET", "/v1/responses/none", None, 404),
        ("POST", "/v1/responses", {"input": ""}, 400),
        ("PUT", "/v1/responses", {}, 405),
        ("GET", "/v1/nothing", None, 404),
        ("POST", "/v1/responses", {"input": "x", "model": "gpt-99"}, 404),
    ],
)
def test_errors(shared_stack: Stack, method: str, where: str, body: Any, status: int) -> None:
    answer = shared_stack.http.request(method, where, json=body)
    assert answer.status_code == status
    assert breaches("ErrorResponse", answer.json()) == []


def test_the_specification_does_refuse_what_is_none_of_its_objects(shared_stack: Stack) -> None:
    response = shared_stack.ask("hello")
    for field in ("id", "output", "tools", "created_at"):
        assert breaches("Response", {k: v for k, v in response.items() if k != field})
    assert breaches("ConversationResource", {"id": "conv_1"})
    assert breaches("ResponseTextDeltaEvent", {"type": "response.output_text.delta"})
