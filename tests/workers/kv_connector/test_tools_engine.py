"""Function calls and forms of text on real vLLM: forced by its structured outputs, found by its parsers, carried with their KV."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.evidence import TOLD_HEADER, TOLD_KEY
from service.domain.items import ItemKind
from service.domain.telling import Fragment, Telling, parts
from tests.engines.checkpoints import TAKES_TOOLS, TinyModel
from tests.engines.real import EngineHall, RealEngine, new_handle

pytestmark = pytest.mark.engine

STOP = 2
CITIES = {"type": "string", "enum": ["Paris", "Rome"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": CITIES},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
USER = {"role": "user", "content": "What is the weather in the capital of France, and of Italy?"}


@pytest.fixture(scope="module")
def plain_engine(
    engine_hall: EngineHall, tmp_path_factory: pytest.TempPathFactory, kv_store: Path
) -> RealEngine:
    """Without any parser; its template is given by an option."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "tools.jinja").write_text(TAKES_TOOLS)
    model = TinyModel().write(folder / "plain")
    return engine_hall.shared(model, kv_store, "--chat-template", str(folder / "tools.jinja"))


@pytest.fixture(scope="module")
def hermes_engine(
    engine_hall: EngineHall, tmp_path_factory: pytest.TempPathFactory, kv_store: Path
) -> RealEngine:
    model = TinyModel(chat_template=TAKES_TOOLS).write(tmp_path_factory.mktemp("tools") / "hermes")
    options = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    return engine_hall.shared(model, kv_store, *options)


def post(engine: RealEngine, route: str, **body: Any) -> httpx.Response:
    return engine.http.post(f"{engine.url}/everturn/{route}", json=body)


def rendered(engine: RealEngine, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    answer = post(engine, "render", messages=messages, **body)
    assert answer.is_success, answer.text
    return dict(answer.json())


def answered(
    engine: RealEngine, prompt: list[int], form: dict[str, Any], **more: Any
) -> tuple[str, list[int], Any]:
    sampling = {"max_tokens": 200, "temperature": 0, "skip_special_tokens": form["skip_special_tokens"]}
    if form["structured_outputs"]:
        sampling["structured_outputs"] = form["structured_outputs"]
    reply = engine.generate(
        prompt, output_mode="text", return_token_ids=True, sampling_params=sampling, **more
    )
    assert reply.status == 200, reply.document
    [choice] = reply.document["choices"]
    return choice["text"], choice["token_ids"], reply.evidence


@pytest.fixture(params=["plain_engine", "hermes_engine"])
def tools_engine(request: pytest.FixtureRequest) -> RealEngine:
    """With a parser and without."""
    engine: RealEngine = request.getfixturevalue(request.param)
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    engine: RealEngine
    wanted: dict[str, Any]
    prompt: dict[str, Any]

    def parsed(self, text: str, ids: list[int]) -> dict[str, Any]:
        return dict(post(self.engine, "parse", text=text, token_ids=ids, **self.wanted).json())


@pytest.fixture(params=["required", NAMED], ids=["required", "named"])
def forced(request: pytest.FixtureRequest, tools_engine: RealEngine) -> Forced:
    """A prompt that must be answered by a call."""
    wanted = {"tools": [TOOL], "tool_choice": request.param, "parallel_tool_calls": False}
    return Forced(engine=tools_engine, wanted=wanted, prompt=rendered(tools_engine, [USER], **wanted))


def test_a_forced_call_is_made_and_found(forced: Forced) -> None:
    assert forced.prompt["form"]["parsed"] is True
    text, ids, _ = answered(forced.engine, forced.prompt["token_ids"], forced.prompt["form"])
    parsed = forced.parsed(text, ids)
    [call] = parsed["calls"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"])["city"] in CITIES["enum"]
    assert parsed["content"] is None


def test_a_forced_call_is_told_while_it_is_made(forced: Forced) -> None:
    text, ids, pieces = told(forced.engine, forced.prompt, forced.wanted)
    [call] = forced.parsed(text, ids)["calls"]
    line = Telling()
    for kind, function, piece in pieces:
        line.add(Fragment(kind=ItemKind(kind), function=function, text=piece))
    [part] = parts(line.line)
    assert (part.kind, part.function) == (ItemKind.FUNCTION_CALL, call["name"])
    assert json.loads(part.text) == json.loads(call["arguments"])


def told(
    engine: RealEngine, prompt: dict[str, Any], wanted: dict[str, Any]
) -> tuple[str, list[int], list[Any]]:
    """Text and ids of an answer, and what its chunks tell."""
    body = {
        "token_ids": prompt["token_ids"],
        "sampling_params": {"max_tokens": 200, "temperature": 0, "skip_special_tokens": False}
        | {"structured_outputs": prompt["form"]["structured_outputs"]},
        "output_mode": "text",
        "return_token_ids": True,
        "stream": True,
        TOLD_KEY: wanted,
    }
    text, ids, pieces = "", list[int](), list[Any]()
    path, headers = f"{engine.url}/inference/v1/generate", {TOLD_HEADER: "1"}
    with engine.http.stream("POST", path, json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                document = json.loads(line.removeprefix("data: "))
                [choice] = document["choices"]
                text, ids = text + choice["text"], ids + choice["token_ids"]
                pieces += document.get(TOLD_KEY, ())
    return text, ids, pieces


def test_a_window_with_a_call_is_extended_and_its_kv_is_loaded(tools_engine: RealEngine) -> None:
    engine, wanted = tools_engine, {"tools": [TOOL], "tool_choice": NAMED}
    first = rendered(engine, [USER], **wanted)
    handle = new_handle()
    text, ids, evidence = answered(engine, first["token_ids"], first["form"], publish=handle)
    assert evidence.published is not None
    call = post(engine, "parse", text=text, token_ids=ids, **wanted).json()["calls"][0]
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "", "calls": [{"id": "call_1", **call}]},
        {"role": "tool", "content": "21 degrees", "call_id": "call_1"},
    ]
    carried = {"messages": 2, "last_token": ids[-1], "answer": text}
    delta = rendered(engine, messages, carried=carried, **wanted)
    assert (delta["mode"], delta["reason"]) == ("delta", "carried")
    window = [*first["token_ids"], *ids, *delta["token_ids"]]
    _, _, evidence = answered(engine, window, {**delta["form"]}, offer=handle, cache_salt="another")
    assert evidence.loaded is not None
    assert evidence.loaded.tokens > len(first["token_ids"]) - 32


def test_what_an_engine_without_a_parser_cannot_find_is_refused_with_the_way_out(
    plain_engine: RealEngine, hermes_engine: RealEngine
) -> None:
    wanted = {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}
    refused = post(plain_engine, "render", **wanted)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"
    assert "--tool-call-parser" in refused.json()["error"]["message"]
    assert post(hermes_engine, "render", **wanted).is_success


def test_a_template_without_tools_is_refused(v12_engine: RealEngine) -> None:
    refused = post(v12_engine, "render", messages=[USER], tools=[TOOL], tool_choice="required")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"


def test_the_template_that_an_engine_was_given_is_part_of_its_revision(
    plain_engine: RealEngine, v12_engine: RealEngine
) -> None:
    text = plain_engine.identity["descriptor"]["text"]
    assert text["chat_template"] != v12_engine.identity["descriptor"]["text"]["chat_template"]


def test_an_answer_is_held_to_a_schema(v12_engine: RealEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": CITIES},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    prompt = rendered(v12_engine, [USER], response_format=form)
    assert prompt["form"]["parsed"] is False
    text, _, _ = answered(v12_engine, prompt["token_ids"], prompt["form"])
    assert json.loads(text)["city"] in CITIES["enum"]


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"type": "string", "pattern": "("}])
def test_a_schema_that_nothing_can_be_held_to_is_refused_by_name(
    v12_engine: RealEngine, schema: dict[str, Any]
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    refused = post(v12_engine, "render", messages=[USER], response_format=form)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "text.format.schema"
