"""Keys made, rotated and revoked over HTTP; what each scope opens; limits of tenants, named when they are met."""

from typing import Any

import pytest
from sqlalchemy import text

from service.domain.events import TenantId
from service.store import keys
from tests.api.stack import TENANT, Stack


def make_key(stack: Stack, **body: Any) -> tuple[str, str]:
    answer = stack.admin.post("/admin/keys", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["key_id"], answer.json()["secret"]


def status(stack: Stack, secret: str, path: str) -> int:
    return stack.client(secret).get(path).status_code


def limited(stack: Stack, **limits: int) -> str:
    """The key of a new tenant with these limits."""
    secret = stack.other_tenant()
    with stack.database.begin() as conn:
        principal = keys.authenticate(conn, secret)
    assert principal is not None
    answer = stack.admin.put(f"/admin/tenants/{principal.tenant}/limits", json=limits)
    assert answer.status_code == 200, answer.text
    return secret


def refused(answer: Any, status: int, code: str, number: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert f"is {number}," in answer.json()["error"]["message"]


def test_a_key_opens_what_its_scope_says_and_shows_its_secret_once(shared_stack: Stack) -> None:
    key_id, secret = make_key(shared_stack, scope="tenant", tenant=TENANT, label="laptop")
    assert status(shared_stack, secret, "/v1/conversations/conv_x") == 404
    assert status(shared_stack, secret, "/admin/keys") == 403
    [listed] = [k for k in shared_stack.admin.get("/admin/keys").json()["data"] if k["key_id"] == key_id]
    assert (listed["label"], listed["tenant"], listed["revoked_at"]) == ("laptop", TENANT, None)
    assert secret not in str(listed)
    assert listed["created_by"].startswith("key_")


def test_a_revoked_key_fails_at_once_and_is_told_so(shared_stack: Stack) -> None:
    key_id, secret = make_key(shared_stack, scope="operator")
    assert status(shared_stack, secret, "/admin/aliases") == 200
    assert shared_stack.admin.delete(f"/admin/keys/{key_id}").status_code == 200
    answer = shared_stack.client(secret).get("/admin/aliases")
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]
    again = shared_stack.admin.delete(f"/admin/keys/{key_id}")
    assert (again.status_code, again.json()["error"]["code"]) == (400, "key_revoked")


@pytest.mark.parametrize(("grace_s", "old"), [(0, 401), (600, 200)])
def test_a_rotated_key_goes_on_for_its_grace_alone(shared_stack: Stack, grace_s: int, old: int) -> None:
    key_id, secret = make_key(shared_stack, scope="operator", label="ci")
    answer = shared_stack.admin.post(f"/admin/keys/{key_id}/rotate", json={"grace_s": grace_s})
    assert answer.status_code == 201
    assert status(shared_stack, answer.json()["secret"], "/admin/aliases") == 200
    assert status(shared_stack, secret, "/admin/aliases") == old
    fresh = answer.json()["key_id"]
    [listed] = [k for k in shared_stack.admin.get("/admin/keys").json()["data"] if k["key_id"] == fresh]
    assert (listed["replaces"], listed["label"]) == (key_id, "ci")


def test_a_key_in_its_grace_can_still_be_revoked_at_once(shared_stack: Stack) -> None:
    key_id, secret = make_key(shared_stack, scope="operator")
    shared_stack.admin.post(f"/admin/keys/{key_id}/rotate", json={"grace_s": 600})
    assert shared_stack.admin.delete(f"/admin/keys/{key_id}").status_code == 200
    assert status(shared_stack, secret, "/admin/aliases") == 401


def test_an_auditors_key_reads_the_audit_and_nothing_else(shared_stack: Stack) -> None:
    _, secret = make_key(shared_stack, scope="auditor")
    for view in [one["view"] for one in shared_stack.admin.get("/admin/audit").json()["data"]]:
        assert status(shared_stack, secret, f"/admin/audit/{view}") == 200, view
    for path in ("/admin/keys", "/admin/aliases", "/admin/tenants", "/v1/conversations/conv_x"):
        assert status(shared_stack, secret, path) == 403, path
    assert status(shared_stack, shared_stack.secrets.tenant, "/admin/audit/turns") == 403


def test_an_audit_view_is_filtered_and_read_page_by_page(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    chat = stack.conversation()
    turns = [stack.ask("hello", conversation=chat)["id"] for _ in range(3)]
    first = stack.admin.get("/admin/audit/turns", params={"conversation_id": chat, "limit": "2"}).json()
    assert [row["turn_id"] for row in first["data"]] == turns[:2]
    rest = stack.admin.get(
        "/admin/audit/turns", params={"conversation_id": chat, "after": first["next_after"]}
    ).json()
    assert [row["turn_id"] for row in rest["data"]] == turns[2:]
    assert rest["next_after"] is None
    wrong = stack.admin.get("/admin/audit/turns", params={"alias": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "alias")
    assert stack.admin.get("/admin/audit/nothing").status_code == 404
    report = stack.admin.get(f"/admin/audit/conversations/{chat}").json()
    assert [row["turn_number"] for row in report["turns"]] == [1, 2, 3]
    assert len(report["attempts"]) == len(report["decisions"]) == 3
    assert report["chain_breaks"] == []


def test_a_foreign_conversation_and_response_are_unknown(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    answer = stack.ask("hello")
    other = stack.client(stack.other_tenant())
    for path in (f"/v1/responses/{answer['id']}", f"/v1/conversations/{answer['conversation']['id']}"):
        assert other.get(path).status_code == 404
        assert stack.http.get(path).status_code == 200


def test_an_unknown_tenant_or_key_is_named(shared_stack: Stack) -> None:
    unknown = shared_stack.admin.put("/admin/tenants/nobody/limits", json={"items": 1})
    assert unknown.status_code == 404
    assert "nobody" in unknown.json()["error"]["message"]
    assert shared_stack.admin.delete("/admin/keys/key_x").status_code == 404
    zero = shared_stack.admin.put(f"/admin/tenants/{TENANT}/limits", json={"items": 0})
    assert (zero.status_code, zero.json()["error"]["param"]) == (400, "items")


def test_a_tenant_is_made_once_and_read_back(shared_stack: Stack) -> None:
    made = shared_stack.admin.put("/admin/tenants/fresh", json={"on_upgrade": "stay"})
    assert (made.status_code, made.json()["on_upgrade"]) == (200, "stay")
    again = shared_stack.admin.put("/admin/tenants/fresh", json={})
    assert again.json()["on_upgrade"] == "stay"
    assert shared_stack.admin.get("/admin/tenants/fresh").json()["tenant"] == TenantId("fresh")


def test_a_request_above_the_tenants_own_size_is_refused(shared_stack: Stack) -> None:
    client = shared_stack.client(limited(shared_stack, request_bytes=100))
    answer = client.post("/v1/conversations", json={"metadata": {"a": "x" * 100}})
    refused(answer, 413, "limit_request_bytes", 100)
    assert client.post("/v1/conversations", json={}).status_code == 200


def test_items_conversations_and_tokens_are_counted(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    client = stack.client(limited(stack, items=3, conversations=2, tokens=5))
    chat = client.post("/v1/conversations", json={}).json()["id"]
    assert client.post("/v1/responses", json={"input": "hi", "conversation": chat}).status_code == 200
    tokens = client.post("/v1/responses", json={"input": "hi", "conversation": chat})
    refused(tokens, 400, "limit_tokens", 5)
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    refused(client.post(f"/v1/conversations/{chat}/items", json={"items": two}), 400, "limit_items", 3)
    second = client.post("/v1/conversations", json={}).json()["id"]
    refused(client.post("/v1/conversations", json={}), 400, "limit_conversations", 2)
    refused(client.post("/v1/responses", json={"input": "hi"}), 400, "limit_conversations", 2)
    assert client.delete(f"/v1/conversations/{second}").status_code == 200
    assert client.post("/v1/conversations", json={}).status_code == 200


def test_one_turn_too_many_at_once_is_a_429_until_another_has_ended(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    secret = limited(stack, concurrent_turns=1)
    client = stack.client(secret)
    with stack.owner.begin() as conn:
        conn.execute(
            text("""
            INSERT INTO turns (turn_id, tenant_id, conversation_id, request_hash, owner, lease_expires_at)
            SELECT 'resp_open', tenant_id, 'conv_open', 'h', 'api', clock_timestamp() + interval '1 hour'
            FROM tenant_limits
        """)
        )
    busy = client.post("/v1/responses", json={"input": "hi"})
    refused(busy, 429, "limit_concurrent_turns", 1)
    assert (busy.headers["retry-after"], busy.headers["x-should-retry"]) == ("1", "true")
    assert engine.alive
    with stack.owner.begin() as conn:
        conn.execute(text("UPDATE turns SET closed = true, owner = NULL, lease_expires_at = NULL"))
    assert client.post("/v1/responses", json={"input": "hi"}).status_code == 200
