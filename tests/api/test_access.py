"""Keys: who may do what, told in the envelope."""

import httpx
import pytest

from tests.api.stack import Stack

TENANT_ROUTES = [
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/conv_1"),
    ("GET", "/v1/conversations/conv_1/items"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
]
OPERATOR_ROUTES = [
    ("POST", "/admin/revisions"),
    ("GET", "/admin/revisions"),
    ("GET", "/admin/revisions/rev_1"),
    ("PUT", "/admin/aliases/production"),
    ("GET", "/admin/aliases"),
    ("POST", "/admin/engines"),
    ("POST", "/admin/engines/boot_1/heartbeat"),
    ("POST", "/admin/engines/boot_1/drain"),
    ("PUT", "/admin/engines/boot_1/adapters"),
    ("DELETE", "/admin/engines/boot_1"),
    ("GET", "/admin/engines"),
    ("GET", "/admin/rebuilds/rb_1"),
    ("GET", "/admin/rebuilds"),
    ("POST", "/admin/rebuilds/rb_1/cancel"),
    ("POST", "/admin/rebuilds/rb_1/retry"),
    ("POST", "/admin/rollouts"),
    ("GET", "/admin/rollouts"),
    ("GET", "/admin/rollouts/ro_1"),
    ("POST", "/admin/rollouts/ro_1/pause"),
    ("GET", "/admin/rollouts/ro_1/events"),
]


@pytest.mark.parametrize(("method", "path"), TENANT_ROUTES + OPERATOR_ROUTES)
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer sk-wrong", "Basic c2s6", "Bearer \xff"])
def test_without_a_good_key_nothing_is_done(shared_stack: Stack, method: str, path: str, header: str) -> None:
    headers = [("authorization", header)] if header else []
    answer = shared_stack.client("").request(method, path, headers=httpx.Headers(headers, encoding="latin-1"))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
def test_a_tenants_key_does_not_reach_the_administration(shared_stack: Stack, method: str, path: str) -> None:
    answer = shared_stack.http.request(method, path)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(("method", "path"), TENANT_ROUTES)
def test_an_operators_key_does_not_reach_conversations(shared_stack: Stack, method: str, path: str) -> None:
    assert shared_stack.admin.request(method, path).status_code == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_operations_need_no_key(shared_stack: Stack, path: str) -> None:
    assert shared_stack.client("").get(path).status_code == 200
