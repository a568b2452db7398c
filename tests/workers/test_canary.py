"""What the engine is asked before it serves, and what is made of an engine that has no answer."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.domain.canary import TOKENS, Generation
from service.domain.errors import EngineFailed, Unavailable
from workers import canary

ANSWER = list(range(100, 100 + TOKENS))
Handler = Callable[[httpx.Request], httpx.Response]


def ask(handler: Handler) -> Generation:
    with httpx.Client(transport=httpx.MockTransport(handler)) as http:
        return canary.ask(http, "http://engine")


def engine(
    seen: list[tuple[str, dict[str, Any]]], *, answer: object = None, render: object = None
) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        if request.url.path == "/everturn/render":
            return httpx.Response(200, json={"token_ids": [1, 2, 3]} if render is None else render)
        ids = ANSWER if answer is None else answer
        return httpx.Response(200, json={"choices": [{"token_ids": ids}]})

    return handler


def test_the_engine_renders_the_words_itself_and_answers_them_greedily_to_the_last_token() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    assert ask(engine(seen)) == Generation(prompt=(1, 2, 3), answer=tuple(ANSWER))
    (_, rendered), (path, asked) = seen
    assert rendered == {
        "messages": [{"role": "user", "content": "Count from one to ten, in words."}],
        "carried": None,
    }
    assert path == "/inference/v1/generate"
    assert asked["token_ids"] == [1, 2, 3]
    assert asked["sampling_params"] == {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def test_under_an_adapter_it_is_asked_by_the_adapters_name_and_the_base_by_none() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    ask(engine(seen))
    with httpx.Client(transport=httpx.MockTransport(engine(seen))) as http:
        canary.ask(http, "http://engine", model="legal", timeout_s=1)
    assert [asked.get("model") for path, asked in seen if path == "/inference/v1/generate"] == [None, "legal"]


def test_no_kv_of_another_request_is_in_the_answer() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    ask(engine(seen))
    ask(engine(seen))
    salts = [asked["cache_salt"] for path, asked in seen if path == "/inference/v1/generate"]
    assert len(set(salts)) == 2
    assert "kv_transfer_params" not in seen[1][1]


@pytest.mark.parametrize(
    "broken", [{"answer": ANSWER[:-1]}, {"answer": "one"}, {"render": {}}, {"render": []}]
)
def test_an_answer_that_is_none_fails_the_engine(broken: dict[str, object]) -> None:
    with pytest.raises(EngineFailed, match="canary"):
        ask(engine([], **broken))


def test_an_engine_that_refuses_to_answer_is_quoted() -> None:
    with pytest.raises(EngineFailed, match=r"\(400\): no chat template.*--canary off"):
        ask(lambda _: httpx.Response(400, text="no chat template"))


def test_an_engine_that_is_away_may_be_asked_again() -> None:
    def away(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unavailable):
        ask(away)
