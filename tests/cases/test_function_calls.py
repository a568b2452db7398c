"""C4 and C5: a call and its result are both in the next prompt, whatever was killed between them, and with their KV."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from transformers import AutoTokenizer

from tests.api.stack import Stack, eventually, running_stack
from tests.api.test_real_engine import register
from tests.engines.checkpoints import TAKES_TOOLS, TinyModel
from tests.engines.real import EngineHall, RealEngine

pytestmark = pytest.mark.engine

FORCED = {"type": "function", "name": "get_weather"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
GREEDY = {"temperature": 0, "max_output_tokens": 120, "tools": [WEATHER]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(chat_template=TAKES_TOOLS).write(tmp_path_factory.mktemp("calls") / "model")


@pytest.fixture(scope="module")
def engine(engine_hall: EngineHall, model: Path, kv_store: Path) -> RealEngine:
    options = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    return engine_hall.shared(model, kv_store, *options)


@pytest.fixture
def served(database: str, engine: RealEngine) -> Iterator[Stack]:
    with running_stack(database) as stack:
        stack.move_alias(register(stack, engine))
        yield stack


@contextmanager
def another_process(stack: Stack) -> Iterator[httpx.Client]:
    with (
        stack.second_server() as url,
        httpx.Client(base_url=url, headers=dict(stack.http.headers), timeout=60) as client,
    ):
        yield client


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    return cast("dict[str, Any]", call)


def result(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"}]


def test_c5_a_call_and_its_result_are_in_the_prompt_of_the_third_turn(served: Stack, model: Path) -> None:
    conversation = served.conversation()
    first = served.ask("Weather?", conversation=conversation, tool_choice=FORCED, **GREEDY)
    call = call_of(first)
    assert json.loads(call["arguments"])["city"] in {"Paris", "Rome"}
    served.await_artifacts(conversation, 1)
    second = served.post(input=result(call), conversation=conversation, tool_choice="none", **GREEDY).json()
    served.await_artifacts(conversation, 2)
    third = served.ask("And tomorrow?", conversation=conversation, tool_choice="none", **GREEDY)
    state = served.state(conversation)
    prompt = state.window[: state.turns[third["id"]].completed.prompt_tokens]  # type: ignore[union-attr]
    text = AutoTokenizer.from_pretrained(model).decode(prompt)
    written = re.search("<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    assert written is not None
    assert json.loads(written[1]) == {"name": "get_weather", "arguments": json.loads(call["arguments"])}
    assert "<|im_start|>tool\n21 degrees<|im_end|>" in text
    assert text.endswith("<|im_start|>user\nAnd tomorrow?<|im_end|>\n<|im_start|>assistant\n")
    # Token for token what the model made, and its KV with it.
    for turn in (second, third):
        completed = state.turns[turn["id"]].completed
        assert completed is not None
        assert completed.extends is not None
        assert turn["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_c4_between_a_call_and_its_result_any_process_may_die(served: Stack) -> None:
    conversation = served.conversation()
    first = served.ask("Weather?", conversation=conversation, tool_choice=FORCED, **GREEDY)
    with another_process(served) as other:
        body = {"input": result(call_of(first)), "conversation": conversation, "tool_choice": "none"}
        answer = other.post("/v1/responses", json=GREEDY | body)
        assert answer.status_code == 200, answer.text
        listed = other.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()
    assert [item["type"] for item in listed["data"]] == [
        *("message", "function_call", "function_call_output", "message")
    ]


def test_c4_a_result_whose_turn_was_cancelled_is_sent_again(served: Stack) -> None:
    conversation = served.conversation()
    first = served.ask("Weather?", conversation=conversation, tool_choice=FORCED, **GREEDY)
    given = {"input": result(call_of(first)), "conversation": conversation, "tool_choice": "none"}
    long = GREEDY | {"temperature": 1, "max_output_tokens": 3000, "background": True}
    turn = served.post(**long | given).json()["id"]
    assert served.http.post(f"/v1/responses/{turn}/cancel").json()["status"] == "cancelled"
    eventually(lambda: served.state(conversation).open_turn is None)
    again = served.post(**GREEDY | given)
    assert again.status_code == 200, again.text
