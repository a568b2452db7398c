"""What holds for every operation of the service, asked of each that its own OpenAPI document names: errors, their headers, and queries."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from service.store import keys
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.api.test_openapi import COMMITTED
from tests.conftest import copied

MADE = json.loads(COMMITTED.read_text())
BODY_BYTES = 2000


class Operation:
    def __init__(self, method: str, path: str, described: dict[str, Any]) -> None:
        self.method = method.upper()
        self.path = path
        self.where = re.sub(r"\{how\}", "pause", path)
        self.where = re.sub(r"\{(\w+)\}", r"\1_none", self.where)
        self.scopes = [scope for one in described.get("security", ()) for scope in one]
        self.takes_body = "requestBody" in described
        self.needs_body = described.get("requestBody", {}).get("required", False)

    def ask(self, stack: Stack, **more: Any) -> httpx.Response:
        key = stack.secrets.tenant if "tenantKey" in self.scopes else stack.secrets.operator
        return self.ask_as(stack, key, **more)

    def ask_as(self, stack: Stack, key: str, **more: Any) -> httpx.Response:
        if self.takes_body and "content" not in more:
            more = {"json": {}} | more
        return asked(stack, key, self.method, self.where, **more)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def asked(stack: Stack, key: str, method: str, where: str, **more: Any) -> httpx.Response:
    """Over a connection of its own: after some refusals the server hangs up, which the next request would meet with."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=60, verify=False) as http:  # noqa: S501 no TLS here
        return http.request(method, where, **more)


EVERY = [
    Operation(method, path, told)
    for path, methods in MADE["paths"].items()
    for method, told in methods.items()
]
GUARDED = [one for one in EVERY if one.scopes]
OF_TENANTS = [one for one in EVERY if "tenantKey" in one.scopes]
WITH_BODY = [one for one in EVERY if one.takes_body]
guarded = pytest.mark.parametrize("operation", GUARDED, ids=str)
with_body = pytest.mark.parametrize("operation", WITH_BODY, ids=str)


@pytest.fixture(scope="module")
def stack(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with (
        copied(postgres_server, template_database) as url,
        running_stack(url, max_body_bytes=BODY_BYTES) as running,
    ):
        yield running


def refused(answer: httpx.Response, status: int, code: str | None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]
    assert (error["code"], answer.headers["content-type"]) == (code, "application/json")
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    return error


def test_there_is_something_to_ask() -> None:
    assert len(EVERY) > 50
    assert [str(one) for one in WITH_BODY if not one.needs_body] == ["POST /v1/conversations"]
    assert len(OF_TENANTS) > 15
    assert {one.path for one in EVERY if not one.scopes} == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    }


@guarded
@pytest.mark.parametrize("name", ["colour", "colour[]", "limit[]"])
def test_a_name_in_its_query_that_it_has_not_is_refused(
    stack: Stack, operation: Operation, name: str
) -> None:
    error = refused(operation.ask(stack, params={name: "1"}), 400, "unknown_parameter")
    assert error["param"] == name


@guarded
def test_without_a_key_it_is_401(stack: Stack, operation: Operation) -> None:
    for key in ("", "sk-wrong"):
        refused(operation.ask_as(stack, key), 401, "invalid_api_key")


@guarded
def test_with_a_key_of_another_scope_it_is_403(stack: Stack, operation: Operation) -> None:
    other = stack.secrets.operator if operation in OF_TENANTS else stack.secrets.tenant
    refused(operation.ask_as(stack, other), 403, "insufficient_permissions")


@pytest.mark.parametrize("path", MADE["paths"])
def test_another_method_is_405_and_told_which_there_are(stack: Stack, path: str) -> None:
    here = [one for one in EVERY if one.path == path]
    answer = asked(stack, stack.secrets.tenant, "PATCH", here[0].where)
    refused(answer, 405, "method_not_allowed")
    assert {one.method for one in here} <= set(answer.headers["allow"].split(", "))


@pytest.mark.parametrize("path", MADE["paths"])
def test_what_lies_beyond_it_is_404(stack: Stack, path: str) -> None:
    beyond = f"{path}/beyond/all/of/it".replace("{", "").replace("}", "")
    refused(asked(stack, stack.secrets.tenant, "GET", beyond), 404, "unknown_url")


@with_body
def test_a_body_that_is_too_large_is_413(stack: Stack, operation: Operation) -> None:
    error = refused(operation.ask(stack, json={"x": "x" * BODY_BYTES}), 413, "body_too_large")
    assert str(BODY_BYTES) in error["message"]


@with_body
def test_a_body_of_another_kind_is_415(stack: Stack, operation: Operation) -> None:
    headers = {"content-type": "text/plain"}
    error = refused(operation.ask(stack, content=b"{}", headers=headers), 415, "unsupported_media_type")
    assert error["param"] == "Content-Type"


@with_body
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": NaN}'])
def test_a_body_that_is_no_object_is_400(stack: Stack, operation: Operation, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = operation.ask(stack, content=content, headers=headers)
    if content or operation.needs_body:
        refused(answer, 400, "invalid_json")
    else:  # Taken, but for the alias that there is none of here.
        refused(answer, 404, "model_not_found")


@with_body
def test_a_field_that_it_has_not_is_refused(stack: Stack, operation: Operation) -> None:
    answer = operation.ask(stack, json={"colour": "red"})
    code = answer.json()["error"]["code"]
    assert code in {"unknown_parameter", "missing_required_parameter"}
    assert refused(answer, 400, code)["param"]


@guarded
def test_a_fault_of_ours_is_500_and_tells_nothing_of_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    def broken(*_: object) -> None:
        msg = "a secret of ours"
        raise RuntimeError(msg)

    monkeypatch.setattr(keys, "authenticate", broken)
    error = refused(operation.ask(stack), 500, "internal_error")
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


@guarded
def test_without_a_database_it_is_503_and_may_be_sent_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, ConnectionError("away"))

    monkeypatch.setattr(keys, "authenticate", away)
    answer = operation.ask(stack)
    refused(answer, 503, "storage_unavailable")
    assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")


def test_beyond_its_rate_each_of_a_tenants_is_429_and_says_when(database: str) -> None:
    with running_stack(database, requests_per_minute=1) as stack:
        stack.http.get("/v1/models")
        for operation in OF_TENANTS:
            answer = operation.ask(stack)
            refused(answer, 429, "rate_limit_exceeded")
            assert 0 < int(answer.headers["retry-after"]) <= 60
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")


@pytest.mark.parametrize("operation", OF_TENANTS, ids=str)
def test_within_its_rate_each_of_a_tenants_says_what_is_left(limited: Stack, operation: Operation) -> None:
    answer = operation.ask(limited)
    assert int(answer.headers["x-ratelimit-remaining-requests"]) < 1000
    assert answer.headers["x-ratelimit-limit-requests"] == "1000"


@pytest.fixture(scope="module")
def limited(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with (
        copied(postgres_server, template_database) as url,
        running_stack(url, requests_per_minute=1000, turn_wait_s=0) as running,
    ):
        yield running
