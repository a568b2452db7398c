"""What is no request of the service's is refused by name, before any tokenizer is loaded; nor is a template taken that nobody measured."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from service.domain.errors import InvalidInput
from workers.kv_connector.text_front import TextFront, after_the_last

MESSAGES = [{"role": "user", "content": "hi"}]


def app(*, template: str | None = None, measured: str | None = None) -> Any:
    transfer = SimpleNamespace(kv_connector_extra_config={"chat_template": measured})
    config = SimpleNamespace(kv_transfer_config=transfer)
    args = SimpleNamespace(chat_template=template)
    return SimpleNamespace(state=SimpleNamespace(vllm_config=config, args=args))


def refused(route: str, body: object, **given: Any) -> InvalidInput:
    front = TextFront()
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    work = front.parse(app(**given), sent) if route == "parse" else front.render(app(**given), sent, [])
    with pytest.raises(InvalidInput) as error:
        asyncio.run(work)
    return error.value


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("render", b"{", "body"),
        ("render", [], "body"),
        ("render", {}, "body"),
        ("render", {"messages": [{"role": "user"}]}, "body"),
        ("render", {"messages": [{"role": "user", "content": 1}]}, "messages"),
        ("render", {"messages": [{"role": "tool", "content": "", "call_id": 1}]}, "messages"),
        ("render", {"messages": [{"role": "assistant", "content": "", "calls": [{"id": "c"}]}]}, "body"),
        ("render", {"messages": MESSAGES, "carried": {"messages": "1", "last_token": 2}}, "carried"),
        (
            "render",
            {"messages": MESSAGES, "carried": {"messages": 1, "last_token": 2, "answer": 3}},
            "carried",
        ),
        ("render", {"messages": MESSAGES, "tools": ["x"]}, "tools"),
        ("render", {"messages": MESSAGES, "response_format": "json"}, "text.format"),
        ("parse", {"token_ids": []}, "text"),
        ("parse", {"text": "x", "token_ids": ["y"]}, "token_ids"),
    ],
)
def test_nonsense_names_its_field(route: str, body: object, field: str) -> None:
    assert refused(route, body).param == field


def test_a_template_that_the_revision_does_not_know_of_is_not_used() -> None:
    error = refused("render", {"messages": MESSAGES}, template="mine.jinja")
    assert error.param == "chat_template"
    assert "kv_connector_extra_config" in str(error)


@pytest.mark.parametrize(
    ("prompt", "own"),
    [([7, 2, 8, 3, 9, 9], [9, 9]), ([7, 8], [7, 8]), ([7, 2], []), ([], [])],
)
def test_of_a_prompt_what_belongs_to_its_answer_comes_after_the_last_stop(
    prompt: list[int], own: list[int]
) -> None:
    assert list(after_the_last({2, 3}, prompt)) == own
