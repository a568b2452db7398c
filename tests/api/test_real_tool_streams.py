"""A model that reasons, speaks and calls, on real vLLM with its own parsers: streamed as it comes, stored as it was streamed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.api.stack import Stack, deltas, sse
from tests.api.test_real_engine import register
from tests.api.test_resume import Events, check_every_number, said
from tests.api.test_tool_streams import arguments, check_as_stored, kinds
from tests.api.test_tools import WEATHER, output_of
from tests.engines.checkpoints import TAKES_TOOLS, TinyModel
from tests.engines.real import EngineHall, RealEngine

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

pytestmark = pytest.mark.engine

THOUGHT = ("It asks", " of the weather.")
SCRIPT = (
    "<think>",
    *THOUGHT,
    "</think>",
    "Let me",
    " see.",
    "<tool_call>",
    '\n{"name": "get_weather", ',
    '"arguments": {"ci',
    'ty":  "Ro',
    'me"}}\n',
    "</tool_call>",
)
SPELLED = '{"city":  "Rome"}'
GREEDY = {"temperature": 0, "max_output_tokens": 100}
OPTIONS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1")


@pytest.fixture(scope="module")
def scripted_engine(
    engine_hall: EngineHall, tmp_path_factory: pytest.TempPathFactory, kv_store: Path
) -> RealEngine:
    model = TinyModel(chat_template=TAKES_TOOLS, script=SCRIPT)
    return engine_hall.shared(model.write(tmp_path_factory.mktemp("scripted") / "model"), kv_store, *OPTIONS)


@pytest.fixture
def scripted(stack: Stack, scripted_engine: RealEngine) -> Stack:
    stack.move_alias(register(stack, scripted_engine))
    return stack


def streamed(stack: Stack, **more: object) -> Events:
    body = {"tools": [WEATHER], **GREEDY, **more}
    return said(stack.stream("weather?", **body))


def reasoned(events: Events) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.reasoning_text.delta")


def test_reasoning_words_and_arguments_come_piece_by_piece(scripted: Stack) -> None:
    live = streamed(scripted)
    assert kinds(live) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert (reasoned(live), deltas(live), arguments(live)) == ("".join(THOUGHT), "Let me see.", [SPELLED])
    check_as_stored(scripted, live)
    check_every_number(scripted, live)


def test_the_turn_after_reasons_anew_in_a_window_that_was_reasoned_in(scripted: Stack) -> None:
    first = streamed(scripted)[-1]["response"]
    scripted.await_artifacts(first["conversation"]["id"], 1)
    body = {
        "input": [output_of(first)],
        "previous_response_id": first["id"],
        "tools": [WEATHER],
        "stream": True,
    }
    with scripted.http.stream("POST", "/v1/responses", json=body | GREEDY) as answer:
        assert answer.status_code == 200, answer.read()
        live = said(list(sse(answer)))
    assert (reasoned(live), deltas(live), arguments(live)) == ("".join(THOUGHT), "Let me see.", [SPELLED])
    state = scripted.state(first["conversation"]["id"])
    turn = state.turns[live[-1]["response"]["id"]]
    assert turn.completed is not None
    assert turn.completed.extends == first["id"]
    check_as_stored(scripted, live)


def test_without_tools_it_reasons_and_what_looks_like_a_call_is_its_text(scripted: Stack) -> None:
    live = streamed(scripted, tools=[])
    assert reasoned(live) == "".join(THOUGHT)
    assert deltas(live) == "".join(SCRIPT[SCRIPT.index("Let me") :])
    usage = live[-1]["response"]["usage"]["output_tokens_details"]
    assert usage["reasoning_tokens"] >= len(THOUGHT)
    check_as_stored(scripted, live)


def test_each_turn_reasons_before_it_is_held_to_a_form(scripted: Stack) -> None:
    """The window of the second has the end of the first one's reasoning in it."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "name": "x", "schema": schema | {"additionalProperties": False}}
    conversation = scripted.conversation()
    for _ in range(2):
        answer = scripted.ask("well?", conversation=conversation, text={"format": form}, **GREEDY)
        reasoning, message = answer["output"]
        assert reasoning["content"][0]["text"] == "".join(THOUGHT)
        assert json.loads(message["content"][0]["text"])["ok"] in (True, False)
    turn = scripted.state(conversation).turns[answer["id"]]
    assert turn.completed is not None
    assert turn.completed.extends is not None


def test_a_call_cut_short_by_the_limit_stays_the_call_that_was_streamed(scripted: Stack) -> None:
    live = streamed(scripted, max_output_tokens=SCRIPT.index('ty":  "Ro') + 1)
    call = live[-1]["response"]["output"][-1]
    assert (call["type"], call["status"], call["arguments"]) == (
        "function_call",
        "incomplete",
        '{"city":  "Ro',
    )
    check_as_stored(scripted, live)
    check_every_number(scripted, live)


def test_chat_completions_stream_the_same_answer(scripted: Stack) -> None:
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tool = cast("ChatCompletionFunctionToolParam", {"type": "function", "function": function})
    chunks = scripted.openai.chat.completions.create(
        model="production",
        messages=[{"role": "user", "content": "weather?"}],
        tools=[tool],
        temperature=0,
        stream=True,
    )
    text, told = "", list[str]()
    for chunk in chunks:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        told += [call.function.arguments or "" for call in delta.tool_calls or () if call.function]
    assert (text, "".join(told)) == ("Let me see.", SPELLED)
