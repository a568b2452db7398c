"""Headers of chat completions and counts: heeded as a turn heeds them, or refused by name, and none passed over."""

import pytest

from tests.api.stack import Stack
from tests.engines.simulated import SimulatedEngine

CHAT = {"model": "production", "messages": [{"role": "user", "content": "hello"}]}
PATHS = {"/v1/chat/completions": CHAT, "/v1/responses/input_tokens": {"input": "hello"}}
OF_TURNS = {
    "Idempotency-Key": "key-1",
    "x-everturn-on-disconnect": "cancel",
    "x-everturn-deadline-s": "30",
}


def steps(engine: SimulatedEngine) -> list[str]:
    seen: list[str] = []
    engine.at = seen.append
    return seen


def count(stack: Stack, headers: dict[str, str], **body: str) -> int:
    answer = stack.http.post("/v1/responses/input_tokens", json={"input": "hello"} | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_answered_by_the_revision_that_is_named(stack: Stack, *, stream: bool) -> None:
    stack.start_engine("a", alias=True)
    other = stack.start_engine("b")
    headers = {"x-everturn-revision": other.revision}
    answer = stack.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert answer.headers["x-everturn-revision"] == other.revision
    assert len(other.prompts) == 1


def test_a_count_is_of_the_revision_that_is_named(stack: Stack) -> None:
    ours, other = stack.start_engine("a", alias=True), stack.start_engine("b")
    at_ours, at_other = steps(ours), steps(other)
    count(stack, {"x-everturn-revision": other.revision})
    assert (at_ours, at_other) == ([], ["render"])


def test_a_count_is_of_where_the_policy_has_the_turn_answered(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.move_alias(stack.start_engine("b"))
    at_old = steps(old)
    count(stack, {}, conversation=conversation)
    assert at_old == []
    count(stack, {"x-everturn-on-upgrade": "stay"}, conversation=conversation)
    assert at_old == ["render"]


def test_a_count_on_another_head_is_refused(shared_stack: Stack) -> None:
    body = {"conversation": shared_stack.conversation(), "input": "hello"}
    for head, status in (("1", 200), ("2", 412)):
        answer = shared_stack.http.post(
            "/v1/responses/input_tokens", json=body, headers={"if-match": f'"{head}"'}
        )
        assert answer.status_code == status


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", OF_TURNS)
def test_what_means_something_for_turns_alone_is_refused_by_name(
    shared_stack: Stack, path: str, header: str
) -> None:
    refused = shared_stack.http.post(path, json=PATHS[path], headers={header: OF_TURNS[header]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, header, "unsupported_parameter")
    assert header in error["message"]


@pytest.mark.parametrize(
    ("header", "value"), [("If-Match", "*"), ("x-everturn-on-upgrade", "stay")], ids=["head", "policy"]
)
def test_what_needs_a_history_is_refused_of_a_chat(shared_stack: Stack, header: str, value: str) -> None:
    refused = shared_stack.http.post("/v1/chat/completions", json=CHAT, headers={header: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, header)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("revision", ["v13", "rev_" + "0" * 64])
def test_a_revision_that_is_none_is_refused_by_name(shared_stack: Stack, path: str, revision: str) -> None:
    refused = shared_stack.http.post(path, json=PATHS[path], headers={"x-everturn-revision": revision})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "revision")
