"""K6: an adapter overwritten at the same path and name, or scaled otherwise, never reads the KV of what it was before."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.engines.adapters import TinyAdapter
from tests.engines.real import EngineHall, RealEngine, Reply, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

NAME = "style"
A, B = TinyAdapter(seed=1), TinyAdapter(seed=2)


def assert_refused_for_its_adapter(reply: Reply) -> None:
    assert reply.known.loaded is None
    assert reply.known.refusal is not None
    assert reply.known.refusal.reason is RefusalReason.REVISION_MISMATCH
    assert reply.known.refusal.differing == ("adapter",)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the adapter of that name lies, in all its versions."""
    return tmp_path_factory.mktemp("adapters") / "style"


def test_k6_an_adapter_overwritten_in_place_then_put_back_then_scaled(
    engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, path: Path
) -> None:
    ids, handle, bare = prompt("k6"), new_handle(), new_handle()

    def started(adapter: TinyAdapter) -> RealEngine:
        return engine_hall.start(tiny_v12, kv_store, adapters={NAME: adapter.write(path)})

    # A writes, its file is overwritten under the running engine, and it goes on with what it has loaded
    engine = started(A)
    made = engine.generate(ids, model=NAME, publish=handle, max_tokens=1)
    assert made.known.published is not None
    cold_a = engine.cold(ids, model=NAME)
    without = engine.cold(ids)
    assert without.tokens != cold_a.tokens, "the adapter shows"
    assert_refused_for_its_adapter(engine.generate(ids, offer=handle))
    assert engine.generate(ids, publish=bare, max_tokens=1).known.published is not None
    assert_refused_for_its_adapter(engine.generate(ids, model=NAME, offer=bare))
    B.write(path)
    again = engine.generate(ids, model=NAME, offer=handle, cache_salt="another")
    assert again.known.loaded is not None
    assert (again.tokens, again.logprobs) == (cold_a.tokens, cold_a.logprobs)
    engine_hall.stop(engine)

    # B under the same name and path
    engine = started(B)
    assert_refused_for_its_adapter(warm_b := engine.generate(ids, model=NAME, offer=handle))
    cold_b = engine.cold(ids, model=NAME)
    assert (warm_b.tokens, warm_b.logprobs) == (cold_b.tokens, cold_b.logprobs)
    assert cold_b.logprobs != cold_a.logprobs
    engine_hall.stop(engine)

    # A again: its KV is good again
    engine = started(A)
    back = engine.generate(ids, model=NAME, offer=handle)
    assert back.known.loaded is not None
    assert (back.tokens, back.logprobs) == (cold_a.tokens, cold_a.logprobs)
    engine_hall.stop(engine)

    # the same weights at half the scale
    engine = started(TinyAdapter(seed=1, scale=0.5))
    assert_refused_for_its_adapter(half := engine.generate(ids, model=NAME, offer=handle))
    cold_half = engine.cold(ids, model=NAME)
    assert (half.tokens, half.logprobs) == (cold_half.tokens, cold_half.logprobs)
    assert cold_half.logprobs != cold_a.logprobs
    engine_hall.stop(engine)
