"""Every parameter of OpenAI's own specification is understood, or refused by its name: none is passed over."""

from typing import Any, get_args

import pytest

from service.api.schemas import (
    COUNTED,
    REFUSED,
    WITHOUT_EFFECT,
    ConversationBody,
    ConversationUpdateBody,
    Include,
    ResponseBody,
)
from tests.api.stack import Stack
from tests.api.test_contract import SPEC
from tests.api.test_every_operation import MADE

ASKED_FOR: dict[str, Any] = {
    "context_management": [{"type": "compaction"}],
    "moderation": {"mode": "block"},
    "prompt": {"id": "pmpt_1"},
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low"},
    "service_tier": "flex",
    "store": False,
    "stream_options": {"include_obfuscation": True},
}
"""What is not there, asked for as the specification allows it."""
NOT_THERE = {("POST", "/responses/compact")}


def fields(name: str) -> set[str]:
    """Of a schema, with all that it is made of."""
    return set(_fields(SPEC["components"]["schemas"][name]))


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _fields(SPEC["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    own = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        own |= _fields(part)
    return own


def test_a_responses_parameters_are_fields_of_ours_or_known_to_be_none() -> None:
    ours = set(ResponseBody.model_fields)
    assert fields("CreateResponse") - ours == ASKED_FOR.keys() == REFUSED | WITHOUT_EFFECT.keys()
    assert ours - fields("CreateResponse") == {"on_upgrade", "revision"}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_is_not_there_is_refused_by_its_name_and_taken_as_null(shared_stack: Stack, name: str) -> None:
    refused = shared_stack.post(input="hello", **{name: ASKED_FOR[name]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, name, "unsupported_parameter")
    assert name in error["message"]
    assert shared_stack.post(input="hello", **{name: None}).status_code == 200


@pytest.mark.parametrize(("name", "values"), WITHOUT_EFFECT.items())
def test_what_asks_for_what_is_done_anyway_is_taken(
    shared_stack: Stack, name: str, values: tuple[object, ...]
) -> None:
    assert values
    for value in values:
        assert shared_stack.post(input="hello", **{name: value}).status_code == 200, value


def test_a_conversations_parameters_are_all_there() -> None:
    assert fields("CreateConversationBody") <= ConversationBody.model_fields.keys()
    assert fields("UpdateConversationBody") == ConversationUpdateBody.model_fields.keys()


def test_what_is_counted_is_all_that_can_be_asked_to_be() -> None:
    assert fields("TokenCountsBody") - COUNTED == {"personality"}
    assert fields("TokenCountsBody") >= COUNTED


def test_what_cannot_be_counted_is_refused_by_its_name(shared_stack: Stack) -> None:
    for name, value in (("personality", "friendly"), ("reasoning", {"effort": "low"})):
        refused = shared_stack.http.post("/v1/responses/input_tokens", json={"input": "x", name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_what_can_be_included_is_what_openai_has() -> None:
    assert set(get_args(Include)) == set(SPEC["components"]["schemas"]["IncludeEnum"]["enum"])


@pytest.mark.parametrize(("path", "method"), [(p, m) for p, ms in SPEC["paths"].items() for m in ms])
def test_every_route_is_there_with_all_of_its_parameters(path: str, method: str) -> None:
    if (method.upper(), path) in NOT_THERE:
        assert method not in MADE["paths"].get(f"/v1{path}", {})
        return
    ours = {
        (one["in"], one["name"].removesuffix("[]"))
        for one in MADE["paths"][f"/v1{path}"][method].get("parameters", ())
    }
    wanted = {(one["in"], one["name"]) for one in SPEC["paths"][path][method]["parameters"]}
    assert wanted <= ours


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_events_that_are_padded_are_not_there_and_refused_where_they_are_asked_for(
    shared_stack: Stack, path: str
) -> None:
    body = {"model": "production", "stream": True, "stream_options": {"include_obfuscation": True}}
    said = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"input": "x"}
    refused = shared_stack.http.post(path, json=body | said)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("stream_options")


def test_so_they_are_of_a_response_that_is_read(shared_stack: Stack) -> None:
    path = f"/v1/responses/{shared_stack.ask('hello')['id']}"
    for value, status in (("true", 400), ("false", 200), ("maybe", 400)):
        answer = shared_stack.http.get(path, params={"stream": "true", "include_obfuscation": value})
        assert answer.status_code == status
        if status == 400:
            assert answer.json()["error"]["param"] == "include_obfuscation"
