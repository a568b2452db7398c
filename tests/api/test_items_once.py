"""Items are added once for an idempotency key, and once where the official client repeats what it got no answer to."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import pytest

from tests.api.stack import LosesAnAnswer, Stack

ITEMS = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
KEY = {"idempotency-key": "a"}
REPEATED = {"x-stainless-retry-count": "1"}


def add(
    stack: Stack,
    conversation: str,
    headers: dict[str, str] | None = None,
    *,
    items: list[dict[str, Any]] = ITEMS,
    http: httpx.Client | None = None,
) -> httpx.Response:
    path = f"/v1/conversations/{conversation}/items"
    return (http or stack.http).post(path, json={"items": items}, headers=headers)


def texts(stack: Stack, conversation: str) -> list[str]:
    return [item.text for item in stack.state(conversation).items]


def test_under_a_key_they_are_added_once_and_answered_alike(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    first = add(shared_stack, conversation, KEY)
    assert first.status_code == 200, first.text
    assert add(shared_stack, conversation, KEY).json() == first.json()
    assert texts(shared_stack, conversation) == ["one", "two"]


def test_under_another_key_or_none_they_are_added_again(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    for headers in (KEY, {"idempotency-key": "b"}, {}, {}):
        assert add(shared_stack, conversation, headers).status_code == 200
    assert texts(shared_stack, conversation) == ["one", "two"] * 4


def test_other_items_under_the_same_key_are_refused(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    first = add(shared_stack, conversation, KEY).json()
    refused = add(shared_stack, conversation, KEY, items=ITEMS[:1])
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert first["data"][0]["id"] in refused.json()["error"]["message"]
    assert texts(shared_stack, conversation) == ["one", "two"]


def test_of_many_at_once_one_adds_them(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: add(shared_stack, conversation, KEY), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert texts(shared_stack, conversation) == ["one", "two"]


def test_the_repeat_is_answered_after_turns_deletions_and_on_a_head_that_has_moved(
    shared_stack: Stack,
) -> None:
    conversation = shared_stack.conversation()
    head = shared_stack.http.get(f"/v1/conversations/{conversation}").headers["etag"]
    first = add(shared_stack, conversation, KEY | {"if-match": head}).json()
    shared_stack.ask("three", conversation=conversation)
    gone = f"/v1/conversations/{conversation}/items/{first['data'][0]['id']}"
    assert shared_stack.http.delete(gone).status_code == 200
    assert add(shared_stack, conversation, KEY | {"if-match": head}).json() == first
    assert texts(shared_stack, conversation)[:2] == ["two", "three"]


def test_a_key_is_of_one_conversation_of_one_tenant(shared_stack: Stack) -> None:
    other = shared_stack.client(shared_stack.other_tenant())
    theirs = other.post("/v1/conversations").json()["id"]
    mine = [shared_stack.conversation(), shared_stack.conversation()]
    answers = [add(shared_stack, one, KEY).json() for one in mine]
    answers.append(add(shared_stack, theirs, KEY, http=other).json())
    assert len({answer["first_id"] for answer in answers}) == 3
    assert [texts(shared_stack, one) for one in mine] == [["one", "two"]] * 2


def test_a_repeat_without_a_key_is_answered_with_the_newest_items_if_they_say_the_same(
    shared_stack: Stack,
) -> None:
    conversation = shared_stack.conversation()
    first = add(shared_stack, conversation).json()
    assert add(shared_stack, conversation, REPEATED).json() == first
    other = add(shared_stack, conversation, REPEATED, items=ITEMS[::-1]).json()
    assert other["data"][0]["id"] not in {item["id"] for item in first["data"]}
    assert texts(shared_stack, conversation) == ["one", "two", "two", "one"]


def test_an_answer_says_something_else_than_items_of_the_same_words(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.says = ["two"]
    conversation = stack.ask("one")["conversation"]["id"]
    assert add(stack, conversation, REPEATED).status_code == 200
    assert texts(stack, conversation) == ["one", "two"] * 2


def test_a_lost_answer_is_fetched_by_the_official_clients_own_retry(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    with httpx.Client(transport=LosesAnAnswer()) as http:
        client = stack.openai.with_options(max_retries=2, http_client=cast("Any", http))
        added = client.conversations.items.create(conversation, items=cast("Any", ITEMS))
    assert len(added.data) == 2
    assert texts(stack, conversation) == ["one", "two"]


@pytest.mark.parametrize("key", ["with space", "x" * 256])
def test_what_is_no_key_is_refused(shared_stack: Stack, key: str) -> None:
    refused = add(shared_stack, shared_stack.conversation(), {"idempotency-key": key})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")
