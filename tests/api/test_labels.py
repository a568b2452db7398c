"""What a request says of itself: recorded with its turn, told back wherever the response is read, and of no effect on the answer."""

from typing import Any

import pytest

from service.domain.events import TurnAsked
from tests.api.stack import TENANT, Stack
from tests.api.test_contract import breaches
from tests.api.test_resume import said
from tests.engines.simulated_text import render

LABELS: dict[str, Any] = {
    "max_tool_calls": 3,
    "prompt_cache_key": "shop/42",
    "safety_identifier": "somebody \x00",
}
NONE = dict.fromkeys(LABELS)


def of(response: dict[str, Any]) -> dict[str, Any]:
    return {name: response[name] for name in LABELS}


def test_they_are_in_the_answer_and_in_every_later_reading(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", **LABELS)
    assert of(answer) == LABELS
    assert breaches("Response", answer) == []
    assert of(shared_stack.http.get(f"/v1/responses/{answer['id']}").json()) == LABELS


def test_one_alone_leaves_the_others_null(shared_stack: Stack) -> None:
    assert of(shared_stack.ask("hello", prompt_cache_key="mine")) == NONE | {"prompt_cache_key": "mine"}


def test_they_are_in_every_event_that_has_the_response(shared_stack: Stack) -> None:
    whole = [
        event["response"] for event in said(shared_stack.stream("hello", **LABELS)) if "response" in event
    ]
    assert len(whole) >= 3
    assert [of(response) for response in whole] == [LABELS] * len(whole)


def test_they_are_there_while_it_waits_in_the_background(shared_stack: Stack) -> None:
    assert of(shared_stack.post(input="hello", background=True, **LABELS).json()) == LABELS


def test_they_hold_for_their_own_turn(shared_stack: Stack) -> None:
    first = shared_stack.ask("hello", **LABELS)
    assert of(shared_stack.ask("and?", previous_response_id=first["id"])) == NONE


def test_the_prompt_and_the_use_of_kv_are_what_they_are_without_them(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("hello, hello", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    answer = stack.ask("and?", conversation=conversation, **LABELS)
    assert engine.prompts[0] == tuple(render([{"role": "user", "content": "hello, hello"}]))
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert answer["kv"]["source"] == "reused"


def test_the_official_client_sends_and_reads_them(shared_stack: Stack) -> None:
    client = shared_stack.openai
    answer = client.responses.create(model="production", input="hello", **LABELS)
    assert (answer.max_tool_calls, answer.prompt_cache_key, answer.safety_identifier) == tuple(
        LABELS.values()
    )


def test_a_user_is_told_back_and_not_there_where_none_was_named(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", user="somebody")
    assert answer["user"] == "somebody"
    assert breaches("Response", answer) == []
    assert shared_stack.http.get(f"/v1/responses/{answer['id']}").json() == answer
    assert "user" not in shared_stack.ask("hello")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tool_calls", 0),
        ("max_tool_calls", True),
        ("prompt_cache_key", 7),
        ("prompt_cache_key", "k" * 513),
        ("safety_identifier", "s" * 65),
        ("user", 7),
        ("user", "u" * 513),
    ],
)
def test_what_can_be_none_is_refused_by_its_name(shared_stack: Stack, name: str, value: object) -> None:
    refused = shared_stack.post(input="hello", **{name: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_they_are_erased_with_the_words(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    shared_stack.ask("hello", conversation=conversation, **LABELS)

    def labels() -> list[str]:
        return [e.labels for e in shared_stack.events(conversation) if isinstance(e, TurnAsked)]

    assert [bool(one) for one in labels()] == [True]
    path = f"/admin/conversations/{conversation}/content"
    assert shared_stack.admin.delete(path, params={"tenant": TENANT}).status_code == 200
    assert labels() == [""]
