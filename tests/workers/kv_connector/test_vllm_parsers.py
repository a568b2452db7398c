"""vLLM's own parsers on answers as their models write them: told piece by piece, and stored as told, they say what the whole says."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from service.api.answer_parts import parts_of
from service.domain.events import ItemId, TurnId
from service.domain.items import ItemKind, Part
from service.domain.telling import Fragment, Telling, parts
from service.engine.protocol import Parsed
from tests.engines.checkpoints import TinyModel
from workers.kv_connector.answers import AnswerParsers, Wanted
from workers.kv_connector.rendering import load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""Of what vLLM imports."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": CITY}}
    for name in ("get_weather", "get_time")
)
ROME = '{"city":"Rome \\u00e9\\"<","days": 2}'
ANSWERS = {
    "hermes": [
        (
            f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>\n'
            '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
        ),
        "<tool_call> no JSON </tool_call>",
        "No call, a < b and <tool",
    ],
    "llama3_json": [f'{{"name": "get_weather", "parameters": {ROME}}}', "No call at all."],
    "pythonic": ['[get_weather(city="Rome", days=2), get_time()]', "No call at all."],
    "qwen3_coder": [
        (
            "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
        ),
        "No call, a < b.",
    ],
    "glm45": [
        "Let me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        "No call, a < b.",
    ],
    "granite": [f'<|tool_call|>[{{"name": "get_weather", "arguments": {ROME}}}]', "No call at all."],
    "jamba": [f'<tool_calls>[{{"name": "get_weather", "arguments": {ROME}}}]</tool_calls>', "No call."],
    "xlam": [f'[{{"name": "get_weather", "arguments": {ROME}}}]', "No call at all."],
}
TELL_ALL = ("hermes", "qwen3_coder", "glm45", "granite")
"""Of the others some arguments come at the end: their increments are not what the model wrote."""
TOKENS = (
    *("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "<|tool_call|>", "<think>", "</think>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>"),
)
CASES = [(name, number) for name, answers in ANSWERS.items() for number in range(len(answers))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = TinyModel(script=TOKENS).write(tmp_path_factory.mktemp("parsers") / "model")
    return load_tokenizer(str(folder))


def parsers(tool: str | None, reasoning: str = "") -> AnswerParsers:
    model = SimpleNamespace(
        model="tiny", hf_overrides=None, hf_text_config=SimpleNamespace(model_type="llama")
    )
    outputs = SimpleNamespace(reasoning_parser=reasoning)
    config = SimpleNamespace(model_config=model, structured_outputs_config=outputs)
    return AnswerParsers(SimpleNamespace(tool_call_parser=tool), config)


def told(
    front: AnswerParsers, tokenizer: Any, wanted: Wanted, ids: list[int], at_once: int
) -> tuple[str, str]:
    """The line that is told of an answer which comes in so many tokens at once, and the answer."""
    stream = front.stream(tokenizer, wanted, [])
    assert stream is not None
    line, text = Telling(), ""
    for start in range(0, len(ids), at_once):
        own = ids[start : start + at_once]
        piece = tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        text += piece
        for kind, function, more in stream.add(piece, own, finished=start + at_once >= len(ids)):
            line.add(Fragment(kind=ItemKind(kind), function=function, text=more))
    return line.line, text


def stored(
    front: AnswerParsers, tokenizer: Any, wanted: Wanted, ids: list[int], line: str, text: str
) -> list[Part]:
    found = front.parse(tokenizer, wanted, text, ids)
    parsed = Parsed(
        reasoning=found.reasoning or "",
        reasoning_tokens=found.reasoning_tokens,
        content=found.content or "",
        calls=found.calls,
    )
    return list(parts_of(TurnId("resp_1"), 1, ItemId("msg_1"), parsed, written=text, told=line).parts)


def meant(items: list[Part]) -> list[tuple[str, str, Any]]:
    return [
        (p.kind.value, p.function, json.loads(p.text) if p.kind is ItemKind.FUNCTION_CALL else p.text.strip())
        for p in items
    ]


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_what_is_told_is_the_beginning_of_what_is_stored_and_that_is_what_the_whole_means(
    tokenizer: Any, name: str, number: int, at_once: int
) -> None:
    front, wanted = parsers(name), Wanted(tools=TOOLS, tool_choice="auto")
    ids = tokenizer.encode(ANSWERS[name][number], add_special_tokens=False)
    line, text = told(front, tokenizer, wanted, ids, at_once)
    assert text == ANSWERS[name][number]
    kept = stored(front, tokenizer, wanted, ids, line, text)
    assert meant(kept) == meant(stored(front, tokenizer, wanted, ids, "", text))
    shown = parts(line)
    assert [(one.kind, one.function) for one in shown] == [(p.kind, p.function) for p in kept[: len(shown)]]
    if name in TELL_ALL and kept[-1].kind is ItemKind.FUNCTION_CALL:
        assert meant(list(shown)) == meant(kept)


TWO_CALLS = {
    "hermes": ANSWERS["hermes"][0],
    "pythonic": ANSWERS["pythonic"][0],
    "xlam": f'[{{"name": "get_weather", "arguments": {ROME}}}, {{"name": "get_time", "arguments": {{}}}}]',
    "granite": f'<|tool_call|>[{{"name": "get_weather", "arguments": {ROME}}}, {{"name": "get_time", "arguments": {{}}}}]',
}


@pytest.mark.parametrize("name", TWO_CALLS)
@pytest.mark.parametrize("at_once", [1, 3])
def test_of_several_calls_where_one_is_wanted_the_first_is_told_and_kept(
    tokenizer: Any, name: str, at_once: int
) -> None:
    front, both = parsers(name), Wanted(tools=TOOLS, tool_choice="auto")
    one = replace(both, parallel_tool_calls=False)
    ids = tokenizer.encode(TWO_CALLS[name], add_special_tokens=False)
    line, text = told(front, tokenizer, one, ids, at_once)
    kept = stored(front, tokenizer, one, ids, line, text)
    whole = stored(front, tokenizer, both, ids, "", text)
    assert [part.function for part in whole if part.function] == ["get_weather", "get_time"]
    assert meant(kept) == meant(whole)[:-1]
    shown = parts(line)
    assert [(part.kind, part.function) for part in shown] == [
        (part.kind, part.function) for part in kept[: len(shown)]
    ]


@pytest.mark.parametrize("reasoning", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_reasoning_is_told_apart_before_words_and_calls(tokenizer: Any, reasoning: str, at_once: int) -> None:
    front, wanted = parsers("hermes", reasoning), Wanted(tools=TOOLS, tool_choice="auto")
    answer = f"<think>I must look.</think>{ANSWERS['hermes'][0]}"
    ids = tokenizer.encode(answer, add_special_tokens=False)
    line, text = told(front, tokenizer, wanted, ids, at_once)
    kept = stored(front, tokenizer, wanted, ids, line, text)
    assert [part.kind for part in kept] == [
        *(ItemKind.REASONING, ItemKind.MESSAGE, ItemKind.FUNCTION_CALL, ItemKind.FUNCTION_CALL)
    ]
    assert kept[0].text == "I must look."
    assert (
        meant(kept)[2:]
        == meant(stored(parsers("hermes"), tokenizer, wanted, ids, "", ANSWERS["hermes"][0]))[1:]
    )
    assert len(parts(line)) == len(kept)
