"""What an engine refuses of a request is answered with a status, also where a stream was asked for: unless that has begun, to say what it waits for."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.api.stack import Stack, eventually, names, running_stack
from tests.api.test_resume import said
from tests.api.test_tools import WEATHER
from tests.engines.simulated import Faults, SimulatedEngine

KEY = {"Idempotency-Key": "key-1"}
FORM = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
SLOWER_S = 1.0
"""Than the headers of a stream wait."""


def too_short(faults: Faults) -> None:
    faults.max_model_len = 5


def no_tools(faults: Faults) -> None:
    faults.no_tools = True


def no_schemas(faults: Faults) -> None:
    faults.no_schemas = True


Broken = Callable[[Faults], None]
REFUSED: list[tuple[Broken, dict[str, Any], str, str]] = [
    (too_short, {}, "input", "context_length_exceeded"),
    (no_tools, {"tools": [WEATHER]}, "tools", "unsupported_tools"),
    (no_schemas, {"text": FORM}, "text.format.schema", "invalid_json_schema"),
]


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    return stack.start_engine("a", alias=True)


def post(stack: Stack, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    return stack.http.post("/v1/responses", json={"input": "hello", "stream": True} | more, headers=headers)


def slow(engine: SimulatedEngine) -> None:
    engine.at = lambda step: time.sleep(SLOWER_S) if step == "render" else None


@pytest.mark.parametrize(("broken", "body", "param", "code"), REFUSED)
def test_the_official_client_raises_it_before_the_first_event(
    stack: Stack, engine: SimulatedEngine, broken: Broken, body: dict[str, Any], param: str, code: str
) -> None:
    broken(engine.faults)
    with pytest.raises(openai.BadRequestError) as refused:
        stack.openai.responses.create(model="production", input="hello", stream=True, **body)
    assert (refused.value.param, refused.value.code) == (param, code)
    with pytest.raises(openai.BadRequestError) as whole:
        stack.openai.responses.create(model="production", input="hello", **body)
    assert (whole.value.param, whole.value.code, whole.value.message) == (param, code, refused.value.message)
    assert engine.prompts == []


def test_so_it_is_of_a_conversation_that_goes_on(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    engine.faults.max_model_len = 40
    assert post(stack, input="x" * 40, conversation=conversation).status_code == 400
    assert names(stack.stream("x", conversation=conversation))[-1] == "response.completed"


def test_under_the_same_key_it_is_refused_again_and_read_as_a_stream(
    stack: Stack, engine: SimulatedEngine
) -> None:
    engine.faults.no_tools = True
    first = post(stack, tools=[WEATHER], headers=KEY)
    engine.faults.no_tools = False
    again = post(stack, tools=[WEATHER], headers=KEY)
    assert (first.status_code, again.json()) == (400, first.json())
    turn = first.json()["error"]["response_id"]
    with stack.second_server() as url:
        elsewhere = stack.http.post(
            f"{url}/v1/responses", json={"input": "hello", "stream": True, "tools": [WEATHER]}, headers=KEY
        )
    assert (elsewhere.status_code, elsewhere.json()) == (400, first.json())
    told = stack.http.get(f"/v1/responses/{turn}", params={"stream": "true"})
    assert told.status_code == 200
    assert '"code": "unsupported_tools"' in told.text


def test_an_engine_that_is_slow_to_say_so_says_it_in_the_stream(
    stack: Stack, engine: SimulatedEngine
) -> None:
    slow(engine)
    engine.faults.no_tools = True
    events = said(stack.stream("hello", tools=[WEATHER]))
    assert names(events) == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "unsupported_tools"


def test_an_engine_that_is_slow_to_render_delays_no_stream(stack: Stack, engine: SimulatedEngine) -> None:
    slow(engine)
    assert names(stack.stream("hello"))[-1] == "response.completed"


def test_what_waits_for_an_engine_says_so_first(database: str) -> None:
    with running_stack(database, turn_wait_s=30) as stack, ThreadPoolExecutor(1) as pool:
        stack.retire(stack.start_engine("a", alias=True))
        conversation = stack.conversation()
        asked = pool.submit(stack.stream, "hello", tools=[WEATHER], conversation=conversation)
        eventually(lambda: stack.state(conversation).turns)
        time.sleep(SLOWER_S)
        late = SimulatedEngine("a", stack.store)
        late.faults.no_tools = True
        with late:
            stack.register(late)
            events = said(asked.result())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "unsupported_tools"


def test_what_waits_for_a_rebuild_says_so_first(stack: Stack, engine: SimulatedEngine) -> None:
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    other = stack.start_engine("b", alias=True)
    other.faults.max_model_len = 40
    events = said(stack.stream("x" * 60, conversation=conversation))
    assert names(events)[2] == "everturn.rebuild"
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"


def test_one_in_the_background_says_it_in_its_stream(stack: Stack, engine: SimulatedEngine) -> None:
    engine.faults.no_tools = True
    events = said(stack.stream("hello", tools=[WEATHER], background=True))
    assert events[-1]["response"]["error"]["code"] == "unsupported_tools"
