"""What the consumer does with KV that it must not use, beyond the cases that tests/cases names."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.engines.checkpoints import TinyModel
from tests.engines.offers import assert_equals_cold, published, refusal_of
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine


def test_after_a_rollback_the_old_revision_reads_its_own_and_not_the_new_ones(
    v12_engine: RealEngine, second_v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    ids = prompt(302)
    old, new = published(v12_engine, ids), published(v13_engine, ids)
    assert refusal_of(second_v12_engine.generate(ids, offer=new)).differing == ("weights",)
    assert second_v12_engine.generate(ids, offer=old, cache_salt="rolled back").known.loaded is not None


def test_a_publication_into_a_store_that_cannot_be_written_fails_alone(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path
) -> None:
    store = tmp_path / "kv"
    engine = engine_hall.start(tiny_v12, store)
    (store / "blocks").write_text("a file where a folder should be")
    reply = engine.generate(prompt(314), publish=new_handle())
    assert reply.status == 200
    assert reply.known.publish_failure is not None
    assert reply.known.publish_failure.startswith("the store refused: ")
    assert engine.is_healthy()
    engine_hall.stop(engine)


def test_a_sliding_window_keeps_too_little_to_be_carried(
    engine_hall: EngineHall, kv_store: Path, tmp_path: Path
) -> None:
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    engine = engine_hall.start(TinyModel(config=config).write(tmp_path / "model"), kv_store)
    ids = prompt(317)
    reply = engine.generate(ids, offer=new_handle(), publish=new_handle())
    assert refusal_of(reply).reason is RefusalReason.LAYOUT_UNSUPPORTED
    assert reply.known.publish_failure == "KV of kind SlidingWindowSpec is not carried"
    assert_equals_cold(engine, reply, ids)
    engine_hall.stop(engine)
