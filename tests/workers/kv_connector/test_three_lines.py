"""Weights swapped at the same shapes, and KV of the old ones offered: each of the guard's three lines stops it alone."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

IDS = prompt("three lines")


@pytest.fixture(scope="module")
def handle(v12_engine: RealEngine) -> str:
    """Of KV that v12 made."""
    name = new_handle()
    assert v12_engine.generate(IDS, publish=name, max_tokens=1).known.published is not None
    return name


def test_without_any_line_the_answer_is_quietly_wrong(
    engine_hall: EngineHall, v12_engine: RealEngine, v13_engine: RealEngine, tiny_v13: Path, handle: str
) -> None:
    """Or the tests below would show nothing."""
    engine = engine_hall.start(tiny_v13, v13_engine.store, connector="NeitherSide", middleware="NoMiddleware")
    reply = engine.generate(IDS, offer=handle, headers={"x-everturn-revision": v12_engine.revision})
    cold = v13_engine.cold(IDS)
    assert reply.status == 200
    assert reply.known.revision == v13_engine.revision
    assert reply.known.loaded is not None
    assert reply.known.loaded.revision == v12_engine.revision
    assert (reply.tokens, reply.logprobs) != (cold.tokens, cold.logprobs)
    engine_hall.stop(engine)


def test_the_middleware_alone_stops_it(
    engine_hall: EngineHall, v12_engine: RealEngine, v13_engine: RealEngine, tiny_v13: Path, handle: str
) -> None:
    engine = engine_hall.start(tiny_v13, v13_engine.store, connector="NeitherSide")
    reply = engine.generate(IDS, offer=handle, headers={"x-everturn-revision": v12_engine.revision})
    assert reply.status == 409
    assert reply.document["error"]["differing_fields"] == ["weights"]
    assert reply.evidence is None
    engine_hall.stop(engine)


def test_the_scheduler_side_alone_stops_it(
    engine_hall: EngineHall, v12_engine: RealEngine, v13_engine: RealEngine, tiny_v13: Path, handle: str
) -> None:
    engine = engine_hall.start(tiny_v13, v13_engine.store, connector="NoWorker", middleware="NoMiddleware")
    reply = engine.generate(IDS, offer=handle, headers={"x-everturn-revision": v12_engine.revision})
    cold = v13_engine.cold(IDS)
    assert reply.known.refusal is not None
    assert reply.known.refusal.reason is RefusalReason.REVISION_MISMATCH
    assert reply.known.refusal.differing == ("weights",)
    assert (reply.tokens, reply.logprobs) == (cold.tokens, cold.logprobs)
    engine_hall.stop(engine)


def test_the_worker_side_alone_stops_it(
    engine_hall: EngineHall, v12_engine: RealEngine, v13_engine: RealEngine, tiny_v13: Path, handle: str
) -> None:
    engine = engine_hall.start(tiny_v13, v13_engine.store, connector="NoScheduler", middleware="NoMiddleware")
    failed = engine.generate(
        IDS, offer=handle, publish=new_handle(), headers={"x-everturn-revision": v12_engine.revision}
    )
    assert failed.status == 500
    assert failed.known.refusal is not None
    assert failed.known.refusal.reason is RefusalReason.REVISION_MISMATCH
    assert failed.known.loaded is None
    assert failed.known.published is None
    again = engine.generate(IDS)
    cold = v13_engine.cold(IDS)
    assert (again.tokens, again.logprobs) == (cold.tokens, cold.logprobs)
    engine_hall.stop(engine)
