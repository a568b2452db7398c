"""Our own OpenAPI document: whole, up to date, and true of what the service answers."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from service.api.app import ROUTED
from service.api.openapi.document import OPERATIONS, document
from tests.api.stack import Stack
from tests.api.test_resume import said

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"
ROUTES = [route for module in ROUTED for route in module.router.routes if isinstance(route, APIRoute)]
NAMED = [(f"{method} {route.path}", route) for route in ROUTES for method in route.methods]
MADE = document(ROUTES)
KEYS_OF = {
    "/v1": [["tenantKey"]],
    "/admin": [["operatorKey"], ["auditorKey", "operatorKey"], ["engineKey", "operatorKey"]],
}


def test_the_committed_document_is_the_one_that_is_served() -> None:
    made = json.loads(json.dumps(MADE))
    assert json.loads(COMMITTED.read_text()) == made, (
        "write it anew: python -m service.api.openapi > docs/openapi.json"
    )


def test_every_route_is_described_and_nothing_else_is() -> None:
    assert {name for name, _ in NAMED} == {*OPERATIONS} - {"GET /openapi.json"}


@pytest.mark.parametrize(("name", "route"), NAMED, ids=[name for name, _ in NAMED])
def test_what_a_handler_reads_is_described(name: str, route: APIRoute) -> None:
    source = inspect.getsource(route.endpoint)
    method, path = name.split(" ")
    described = MADE["paths"][path][method.lower()]
    parameters = {parameter["name"] for parameter in described.get("parameters", ())}
    assert ("read_object(" in source) == ("requestBody" in described)
    assert ("StreamingResponse(" in source or "stream_of(" in source) == (
        "text/event-stream" in described["responses"]["200"].get("content", {})
        if "200" in described["responses"]
        else False
    )
    for called, header in (
        ("if_match(", "If-Match"),
        ("_edit(", "If-Match"),
        ("last-event-id", "Last-Event-ID"),
    ):
        if called in source:
            assert header in parameters


def test_each_route_says_which_keys_open_it() -> None:
    for path, methods in MADE["paths"].items():
        for method, described in methods.items():
            scopes = [scope for one in described.get("security", ()) for scope in one]
            assert scopes in KEYS_OF.get(f"/{path.split('/')[1]}", [[]]), f"{method} {path}: {scopes}"
            assert ("auditorKey" in scopes) == path.startswith("/admin/audit")


def test_it_is_an_openapi_document_of_sound_schemas() -> None:
    OpenAPI.model_validate(MADE)
    for schema in MADE["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for reference in references(MADE):
        found = MADE
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_operations_have_names_of_their_own() -> None:
    assert len({told.id for told in OPERATIONS.values()}) == len(OPERATIONS)


def test_it_is_served_without_a_key(shared_stack: Stack) -> None:
    served = shared_stack.client("").get("/openapi.json")
    assert served.json() == json.loads(COMMITTED.read_text())


def test_no_field_is_answered_that_is_not_described(shared_stack: Stack) -> None:
    """Also: none that is described is missing."""
    http = shared_stack.http
    response = shared_stack.ask("hello", instructions="be brief", include=["message.output_text.logprobs"])
    conversation = f"/v1/conversations/{response['conversation']['id']}"
    fork = http.post("/v1/conversations", json={"fork_of": {"conversation": response["conversation"]["id"]}})
    check("Response", response)
    check("Conversation", http.get(conversation).json())
    check("Conversation", fork.json())
    check("ItemList", http.get(f"{conversation}/items").json())
    check("ModelList", http.get("/v1/models").json())
    check("InputTokens", http.post("/v1/responses/input_tokens", json={"input": "hello"}).json())
    chat = {"model": "production", "messages": [{"role": "user", "content": "hello"}]}
    check("ChatCompletion", http.post("/v1/chat/completions", json=chat).json())
    check("ErrorAnswer", http.get("/v1/conversations/conv_none").json())


def test_no_event_of_a_stream_is_sent_that_is_not_described(shared_stack: Stack) -> None:
    content = MADE["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    events = said(shared_stack.stream("hello"))
    assert events
    for event in events:
        assert breaches(content["text/event-stream"]["x-event-data"], event) == []


def check(kind: str, answer: Any) -> None:
    assert breaches({"$ref": f"#/components/schemas/{kind}"}, answer) == []


def breaches(schema: dict[str, Any], answer: Any) -> list[str]:
    """With every object closed that has fields of its own: in an answer, nothing is to go unsaid."""
    whole = schema | {"components": closed(MADE["components"])}
    return [f"{e.json_path}: {e.message[:300]}" for e in Draft202012Validator(whole).iter_errors(answer)]


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        shut["additionalProperties"] = False
    return shut


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from references(one)
