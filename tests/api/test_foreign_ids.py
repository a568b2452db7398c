"""Another tenant's id is answered as one that nobody has: on every route there is, and wherever a body may name one."""

from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from service.api.app import ROUTED
from tests.api.stack import Stack

ROUTES = [
    (method, route.path)
    for module in ROUTED
    for route in module.router.routes
    if isinstance(route, APIRoute) and route.path.startswith("/v1") and "_id}" in route.path
    for method in sorted(route.methods)
]
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/conversations/{conversation_id}"): {"metadata": {}},
    ("POST", "/v1/conversations/{conversation_id}/items"): {"items": [{"role": "user", "content": "hi"}]},
}
NAMED_IN = [
    ("/v1/responses", {"input": "x", "conversation": "{conversation_id}"}),
    ("/v1/responses", {"input": "x", "previous_response_id": "{response_id}"}),
    ("/v1/responses/input_tokens", {"input": "x", "conversation": "{conversation_id}"}),
    ("/v1/responses/input_tokens", {"input": "x", "previous_response_id": "{response_id}"}),
    ("/v1/conversations", {"fork_of": {"conversation": "{conversation_id}"}}),
    (
        "/v1/conversations",
        {"fork_of": {"conversation": "{conversation_id}", "after_response": "{response_id}"}},
    ),
]
UNKNOWN = {f"{kind}_id": f"{prefix}_{'0' * 32}" for kind, prefix in (
    ("conversation", "conv"), ("response", "resp"), ("item", "msg"),
)}  # fmt: skip

Ids = dict[str, str]


@pytest.fixture(scope="module")
def foreign(shared_stack: Stack) -> Ids:
    answer = shared_stack.ask("hello")
    return UNKNOWN | {
        "conversation_id": answer["conversation"]["id"],
        "response_id": answer["id"],
        "item_id": answer["output"][0]["id"],
    }


@pytest.fixture
def other(shared_stack: Stack) -> httpx.Client:
    return shared_stack.client(shared_stack.other_tenant())


def filled(body: Any, ids: Ids) -> Any:
    match body:
        case dict():
            return {key: filled(value, ids) for key, value in body.items()}
        case list():
            return [filled(value, ids) for value in body]
        case str():
            return body.format(**ids)
        case _:
            return body


def told(client: httpx.Client, method: str, path: str, body: Any, ids: Ids) -> tuple[int, str]:
    """Without the ids themselves."""
    answer = client.request(method, path.format(**ids), json=filled(body, ids))
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, name)
    return answer.status_code, text


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_answers_a_foreign_id_as_an_unknown_one(
    other: httpx.Client, foreign: Ids, method: str, path: str
) -> None:
    body = BODIES.get((method, path))
    status, text = told(other, method, path, body, foreign)
    assert status == 404, text
    assert (status, text) == told(other, method, path, body, UNKNOWN)


@pytest.mark.parametrize(("path", "body"), NAMED_IN)
def test_a_body_that_names_a_foreign_id_is_answered_as_one_that_names_an_unknown_one(
    other: httpx.Client, foreign: Ids, path: str, body: Any
) -> None:
    status, text = told(other, "POST", path, body, foreign)
    assert status == 404, text
    assert (status, text) == told(other, "POST", path, body, UNKNOWN)


def test_a_foreign_item_is_not_found_in_ones_own_conversation(other: httpx.Client, foreign: Ids) -> None:
    own = other.post("/v1/conversations", json={}).json()["id"]
    for method in ("GET", "DELETE"):
        answers = [
            other.request(method, f"/v1/conversations/{own}/items/{item}")
            for item in (foreign["item_id"], UNKNOWN["item_id"])
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        first, second = (answer.text for answer in answers)
        assert first.replace(foreign["item_id"], UNKNOWN["item_id"]) == second


def test_what_was_asked_for_by_others_is_as_it_was(shared_stack: Stack, foreign: Ids) -> None:
    assert shared_stack.http.get(f"/v1/responses/{foreign['response_id']}").status_code == 200
    path = f"/v1/conversations/{foreign['conversation_id']}/items"
    items = shared_stack.http.get(path, params={"order": "asc"}).json()["data"]
    assert [item["role"] for item in items] == ["user", "assistant"]
