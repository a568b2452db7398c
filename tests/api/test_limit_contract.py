"""How long, how many and how large what a request has may be: as OpenAI's own specification says, or known to be otherwise."""

from typing import Any

import pytest

from tests.api.test_contract import SPEC
from tests.api.test_openapi import MADE

KEYWORDS = (
    *("minLength", "maxLength", "pattern", "minimum", "maximum"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
INNER = {"items": "[]", "additionalProperties": "{}", "propertyNames": "{name}"}
PAIRS = {
    "ResponseBody": "CreateResponse",
    "InputTokensBody": "TokenCountsBody",
    "ConversationBody": "CreateConversationBody",
    "ConversationUpdateBody": "UpdateConversationBody",
    "InputMessage": "EasyInputMessage",
    "InputCall": "FunctionToolCall",
    "InputCallOutput": "FunctionCallOutputItemParam",
    "InputReasoning": "ReasoningItem",
    "TextPart": "InputTextContent",
    "Function": "FunctionToolParam",
    "ChosenFunction": "ToolChoiceFunction",
    "SchemaFormat": "TextResponseFormatJsonSchema",
}
"""Schemas of ours, and the specification's."""

OTHERWISE: dict[tuple[str, str, Any, Any], str] = {
    ("ResponseBody", "max_output_tokens minimum", 1, 16): "an answer of one token is an answer",
    ("ResponseBody", "context_management minItems", None, 1): "not there",
    ("InputTokensBody", "input maxLength", None, 10 * 2**20): "the limit is the body's, in bytes",
    ("InputCallOutput", "output maxLength", None, 10 * 2**20): "the limit is the body's, in bytes",
}
"""What the specification limits and is taken here otherwise: what is ours, what is the specification's, and why."""

OF_METADATA = {"maxProperties": 16, "{name} maxLength": 64, "{} maxLength": 512}

OURS: dict[tuple[str, str, Any], str] = {
    **{
        (body, f"metadata {limit}", most): "as OpenAI's descriptions have it"
        for body in ("ResponseBody", "ConversationBody", "ConversationUpdateBody")
        for limit, most in OF_METADATA.items()
    },
    ("SchemaFormat", "name maxLength", 64): "as OpenAI's descriptions have it",
    ("SchemaFormat", "name minLength", 1): "as OpenAI's descriptions have it",
    ("SchemaFormat", "name pattern", "^[a-zA-Z0-9_-]+$"): "as OpenAI's descriptions have it",
    **{
        (body, "tools maxItems", 128): "as chat completions have it"
        for body in ("ResponseBody", "InputTokensBody")
    },
    ("InputMessage", "content minItems", 1): "a message of no parts says nothing",
    ("ResponseBody", "max_output_tokens maximum", 1_000_000): "no context is longer",
    ("ResponseBody", "max_tool_calls minimum", 1): "told back, and stored as what it is",
    ("ResponseBody", "max_tool_calls maximum", 2**31 - 1): "told back, and stored as what it is",
    ("ResponseBody", "prompt_cache_key maxLength", 512): "told back, and stored as what it is",
    ("ResponseBody", "user maxLength", 512): "told back, and stored as what it is",
    ("InputCall", "call_id minLength", 1): "as of its output",
    ("InputCall", "call_id maxLength", 64): "as of its output",
    ("InputCall", "name minLength", 1): "as of a tool",
    ("InputCall", "name maxLength", 128): "as of a tool",
}
"""What is limited here, and not in the specification's schemas, with why."""

Limits = dict[str, Any]


def properties(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Of a schema, with all that it is made of."""
    return _properties(document, document["components"]["schemas"][name])


def _properties(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return properties(document, schema["$ref"].rpartition("/")[2])
    own = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        own |= _properties(document, part)
    return own


def limits(document: dict[str, Any], schema: dict[str, Any], place: str = "") -> Limits:
    """By place and keyword; of objects nothing, which are schemas of their own."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        return {}
    found = {f"{place} {keyword}".strip(): schema[keyword] for keyword in KEYWORDS if keyword in schema}
    parts = [(place, one) for union in ("anyOf", "oneOf", "allOf") for one in schema.get(union, ())]
    parts += [(place + mark, schema[key]) for key, mark in INNER.items() if isinstance(schema.get(key), dict)]
    for inner, one in parts:
        for limit, value in limits(document, one, inner).items():
            assert found.setdefault(limit, value) == value
    return found


def differing(ours: Limits, theirs: Limits) -> list[tuple[str, Any, Any]]:
    return [
        (limit, ours.get(limit), theirs.get(limit))
        for limit in sorted(ours.keys() | theirs.keys())
        if ours.get(limit) != theirs.get(limit)
    ]


def all_differing() -> list[tuple[str, str, Any, Any]]:
    return [
        (name, f"{field} {limit}", mine, theirs)
        for name, theirs_name in PAIRS.items()
        for field, schema in properties(MADE, name).items()
        if field in properties(SPEC, theirs_name)
        for limit, mine, theirs in differing(
            limits(MADE, schema), limits(SPEC, properties(SPEC, theirs_name)[field])
        )
    ]


def test_a_limit_of_the_specification_is_ours_or_known_to_be_another() -> None:
    assert {one for one in all_differing() if one[3] is not None} == OTHERWISE.keys()


def test_what_is_limited_here_alone_is_known() -> None:
    assert {one[:3] for one in all_differing() if one[3] is None} == OURS.keys()


def test_the_specification_is_compared_where_it_has_limits() -> None:
    """Otherwise a schema that it calls differently would pass for one without any."""
    name = limits(SPEC, properties(SPEC, "FunctionToolParam")["name"])
    assert name == {"minLength": 1, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"}
    assert all(properties(SPEC, theirs) for theirs in PAIRS.values())


@pytest.mark.parametrize(
    ("path", "method"), [(p, m) for p, ms in SPEC["paths"].items() for m in ms if f"/v1{p}" in MADE["paths"]]
)
def test_what_stands_in_a_query_has_the_specifications_limits(path: str, method: str) -> None:
    ours = {
        one["name"].removesuffix("[]"): one["schema"]
        for one in MADE["paths"][f"/v1{path}"][method].get("parameters", ())
        if one["in"] == "query"
    }
    for one in SPEC["paths"][path][method]["parameters"]:
        if one["in"] == "query":
            theirs = limits(SPEC, one.get("schema", {}))
            mine = limits(MADE, ours[one["name"].removesuffix("[]")])
            assert {limit: mine.get(limit) for limit in theirs} == theirs, one["name"]
