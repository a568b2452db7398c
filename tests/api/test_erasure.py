"""`DELETE /admin/conversations/{id}/content` over HTTP, and what clients see of it afterwards."""

from tests.api.stack import TENANT, Stack


def erase(stack: Stack, conversation: str, **query: str) -> int:
    path = f"/admin/conversations/{conversation}/content"
    return stack.admin.delete(path, params={"tenant": TENANT, **query}).status_code


def test_an_erased_conversation_is_gone_for_its_clients(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    answer = stack.ask("hello", conversation=conversation)
    assert erase(stack, conversation, reason="asked for") == 200
    for got in (
        stack.http.get(f"/v1/conversations/{conversation}"),
        stack.http.get(f"/v1/conversations/{conversation}/items"),
        stack.http.get(f"/v1/responses/{answer['id']}"),
        stack.post(input="and?", conversation=conversation),
        stack.post(input="and?", previous_response_id=answer["id"]),
    ):
        assert got.status_code == 410
        assert got.json()["error"]["code"] == "conversation_erased"
    assert erase(stack, conversation) == 200


def test_only_an_operator_erases_and_only_what_there_is(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    path = f"/admin/conversations/{conversation}/content"
    assert stack.http.delete(path, params={"tenant": TENANT}).status_code == 403
    assert stack.client("").delete(path, params={"tenant": TENANT}).status_code == 401
    assert stack.admin.delete(path).status_code == 400
    assert erase(stack, "conv_nowhere") == 404
    assert erase(stack, conversation, tenant="nobody") == 404
    assert stack.http.get(f"/v1/conversations/{conversation}").status_code == 200


def test_its_kv_waits_for_whoever_has_the_store(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("hello", conversation=conversation)
    [artifact] = stack.await_artifacts(conversation, 1)
    path = f"/admin/conversations/{conversation}/content"
    erased = stack.admin.delete(path, params={"tenant": TENANT}).json()
    assert erased["artifacts"] == [artifact]
    told = stack.admin.get("/admin/audit/kv_deletions", params={"conversation_id": conversation}).json()[
        "data"
    ]
    assert [(row["artifact_id"], row["state"], row["tries"]) for row in told] == [(artifact, "waiting", 0)]
    [erasure] = stack.admin.get("/admin/audit/erasures").json()["data"]
    assert (erasure["contents_left"], erasure["kv_left"]) == (0, 1)
