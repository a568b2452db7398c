"""Real vLLM answers the canary: each process of a revision alike, and those of another revision otherwise."""

import pytest

from service.domain.canary import TOKENS, first_difference
from tests.engines.real import RealEngine
from workers import canary

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def test_engines_of_one_revision_answer_alike_and_those_of_another_do_not(
    v12_engine: RealEngine, second_v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    golden = canary.ask(v12_engine.http, v12_engine.url)
    assert len(golden.answer) == TOKENS
    assert first_difference(golden, canary.ask(second_v12_engine.http, second_v12_engine.url), TOKENS) is None
    assert first_difference(golden, canary.ask(v13_engine.http, v13_engine.url), TOKENS) is not None


def test_its_answer_is_the_same_after_other_requests(v12_engine: RealEngine) -> None:
    before = canary.ask(v12_engine.http, v12_engine.url)
    v12_engine.generate(list(range(5, 200)), max_tokens=8)
    assert canary.ask(v12_engine.http, v12_engine.url) == before
