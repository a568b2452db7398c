"""An idempotency key makes one conversation, however often and however many at once ask with it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.stack import Stack

ITEMS = [{"role": "user", "content": "hello"}]


def create(stack: Stack, key: str, http: httpx.Client | None = None, **body: Any) -> httpx.Response:
    return (http or stack.http).post("/v1/conversations", json=body, headers={"idempotency-key": key})


def test_the_same_request_is_answered_with_the_same_conversation(shared_stack: Stack) -> None:
    first = create(shared_stack, "same", items=ITEMS, metadata={"a": "b"})
    again = create(shared_stack, "same", metadata={"a": "b"}, items=ITEMS)
    assert first.status_code == 200
    assert again.json() == first.json()
    items = shared_stack.http.get(f"/v1/conversations/{first.json()['id']}/items").json()["data"]
    assert len(items) == 1


def test_another_body_is_refused_with_the_conversation_that_the_key_belongs_to(shared_stack: Stack) -> None:
    first = create(shared_stack, "other-body", items=ITEMS)
    refused = create(shared_stack, "other-body")
    assert refused.status_code == 422
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert first.json()["id"] in refused.json()["error"]["message"]


def test_of_many_at_once_one_makes_it(shared_stack: Stack) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: create(shared_stack, "many", items=ITEMS), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_of_many_at_once_with_other_bodies_one_is_taken(shared_stack: Stack) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda number: create(shared_stack, "bodies", metadata={"n": str(number)}), range(8))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [422] * 7


def test_keys_are_each_tenants_own(shared_stack: Stack) -> None:
    other = shared_stack.client(shared_stack.other_tenant())
    assert create(shared_stack, "mine").json()["id"] != create(shared_stack, "mine", other).json()["id"]


def test_a_fork_is_made_once_too(shared_stack: Stack) -> None:
    parent = shared_stack.ask("hello")["conversation"]["id"]
    made = {create(shared_stack, "fork", fork_of={"conversation": parent}).json()["id"] for _ in range(2)}
    assert len(made) == 1


def test_a_deleted_conversation_is_not_made_again(shared_stack: Stack) -> None:
    made = create(shared_stack, "deleted").json()["id"]
    shared_stack.http.delete(f"/v1/conversations/{made}").raise_for_status()
    assert create(shared_stack, "deleted").status_code == 404


@pytest.mark.parametrize("key", ["with space", "x" * 256])
def test_what_is_no_key_is_refused(shared_stack: Stack, key: str) -> None:
    refused = create(shared_stack, key)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")
