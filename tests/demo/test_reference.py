import pytest

from demo.reference import Reference
from tests.stack.answering import answering, name_a_dead_proxy

ANSWER = {
    "choices": [{"token_ids": [7], "text": "Hi", "logprobs": {"content": [{"top_logprobs": []}]}}],
    "mode": "delta",
    "token_ids": [8],
}


def test_an_engine_on_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    name_a_dead_proxy(monkeypatch)
    with answering(ANSWER) as port:
        engine = Reference(address=f"http://127.0.0.1:{port}")
        assert engine.generate([1], max_tokens=1).tokens == (7,)
        assert engine.render([], covered=0, last_token=1) == (8,)
