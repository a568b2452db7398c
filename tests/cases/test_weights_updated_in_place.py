"""K5: weights updated in a running engine. What it had is refused from then on, and its answers are those of the new weights."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.domain.artifact import RefusalReason
from tests.engines.checkpoints import TinyModel
from tests.engines.offers import published, refusal_of
from tests.engines.real import EngineHall, RealEngine, Reply, new_handle
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.jobs import WEIGHTS_CHANGED

pytestmark = pytest.mark.engine


DEADLINE_S = 30.0


@pytest.fixture
def updatable(engine_hall: EngineHall, tiny_v12: Path, kv_store: Path) -> Iterator[RealEngine]:
    """Of v12, with vLLM's routes for developers and nothing of ours in front of the one that calls the worker."""
    engine = open_engine(engine_hall, tiny_v12, kv_store)
    yield engine
    engine_hall.stop(engine)


def open_engine(engine_hall: EngineHall, model: Path, store: Path) -> RealEngine:
    return engine_hall.start(model, store, env={"VLLM_SERVER_DEV_MODE": "1"}, middleware="WeightsOpen")


def update(engine: RealEngine, weights: Path, *, seen: bool = True) -> None:
    """In the worker itself, by vLLM's own method. `seen`: waits until the engine says that it has no revision."""
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
    engine.http.post(f"{engine.url}/collective_rpc", json=body, timeout=60).raise_for_status()
    deadline = time.monotonic() + DEADLINE_S
    while seen and engine.generate([5, 6, 7], max_tokens=1).known.revision is not None:
        assert time.monotonic() < deadline, "it never saw that its weights changed"


def answer(reply: Reply) -> tuple[list[int], list[float]]:
    return reply.tokens, reply.logprobs


def test_k5_five_runs_warm_after_an_update_in_place_equals_cold_on_the_new_weights(
    updatable: RealEngine, v12_engine: RealEngine, v13_engine: RealEngine, tiny_v13: Path
) -> None:
    ids = prompt("five runs, in place")
    old, new = published(v12_engine, ids), published(v13_engine, ids)
    cold = updatable.generate(ids)
    warm = updatable.generate(ids, offer=old, cache_salt="only from the store")
    update(updatable, tiny_v13)
    warm_after = updatable.generate(ids, offer=old)
    cold_new = v13_engine.cold(ids)
    warm_new = v13_engine.generate(ids, offer=new, cache_salt="only from the store")

    assert (cold.known.loaded, cold.known.local_tokens) == (None, 0)
    assert warm.known.loaded is not None
    assert answer(warm) == answer(cold), "the control: stored KV changes nothing"
    refusal = refusal_of(warm_after)
    assert (refusal.reason, refusal.detail) == (RefusalReason.REVISION_UNKNOWN, WEIGHTS_CHANGED)
    assert refusal.artifact_revision == v12_engine.revision
    assert (warm_after.known.revision, warm_after.known.local_tokens) == (None, 0)
    assert answer(warm_after) == answer(cold_new)
    assert cold_new.tokens != cold.tokens
    assert warm_new.known.loaded is not None
    assert answer(warm_new) == answer(cold_new)

    # What is in its own prefix cache now, it computed itself since
    again = updatable.generate(ids)
    assert again.known.local_tokens == 192
    assert answer(again) == answer(cold_new)
    # KV of the new weights is refused too, until it is measured: its files may be others than those in memory
    assert (
        refusal_of(updatable.generate(ids, offer=new, cache_salt="new")).reason
        is RefusalReason.REVISION_UNKNOWN
    )


def test_k5_an_updated_engine_publishes_nothing_and_is_nobody_until_it_is_started_anew(
    engine_hall: EngineHall,
    updatable: RealEngine,
    v12_engine: RealEngine,
    v13_engine: RealEngine,
    tiny_v13: Path,
) -> None:
    ids = prompt("five runs, published")
    claim = {"x-everturn-revision": v12_engine.revision}
    assert updatable.generate(ids, publish=new_handle(), headers=claim).known.published is not None
    update(updatable, tiny_v13)
    silent = updatable.generate(ids, publish=new_handle(), cache_salt="after")
    assert (silent.known.published, silent.known.publish_failure) == (None, WEIGHTS_CHANGED)
    assert updatable.generate(ids, headers=claim).status == 409
    assert updatable.generate(ids, headers={"x-everturn-revision": v13_engine.revision}).status == 409
    assert updatable.http.get(f"{updatable.url}/everturn/identity").status_code == 503
    metrics = updatable.http.get(f"{updatable.url}/everturn/metrics").text
    # One update is seen as several changes where somebody looks amid it.
    assert re.search(r"^everturn_kv_weight_changes_total [1-9]", metrics, re.MULTILINE)
    anew = engine_hall.start(tiny_v13, v12_engine.store)
    assert anew.revision == v13_engine.revision
    assert anew.generate(ids, publish=new_handle()).known.published is not None
    engine_hall.stop(anew)


def test_k5_no_answer_after_an_update_is_said_to_be_of_the_old_revision(
    updatable: RealEngine, v12_engine: RealEngine, tiny_v13: Path
) -> None:
    """Not even of the first request, which may come before anyone looked: the engine looks while it computes it."""
    ids = prompt("five runs, at once")
    old = published(v12_engine, ids)
    assert updatable.generate(ids).known.revision == v12_engine.revision
    update(updatable, tiny_v13, seen=False)
    first = updatable.generate(ids, offer=old, publish=new_handle(), max_tokens=1)
    assert first.known.revision is None
    assert (first.known.loaded, first.known.published) == (None, None)


def test_k5_it_is_seen_however_little_they_move(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path, tmp_path: Path
) -> None:
    ids = prompt("five runs, little moved")
    old = published(v12_engine, ids)
    updatable = open_engine(engine_hall, tiny_v12, v12_engine.store)
    update(updatable, TinyModel(sigma=0.005).write(tmp_path / "moved"))
    moved = updatable.generate(ids, offer=old)
    assert refusal_of(moved).reason is RefusalReason.REVISION_UNKNOWN
    assert moved.known.local_tokens == 0
    engine_hall.stop(updatable)


@pytest.mark.parametrize("moved", [0.005, 0.0], ids=["moved", "the same"])
def test_k5_matrices_that_vllm_packs_for_a_cpu_are_not_trusted_once_they_are_packed_anew(
    updatable: RealEngine, v12_engine: RealEngine, tiny_v12: Path, tmp_path: Path, moved: float
) -> None:
    """As where an adapter is merged: norms and embeddings stay, and no parameter holds the rest, so not even the same is known."""
    ids = prompt("five runs, packed")
    old = published(v12_engine, ids)
    assert updatable.generate(ids, offer=old).known.loaded is not None
    update(updatable, with_projections_moved(tiny_v12, tmp_path / "packed", by=moved))
    assert refusal_of(updatable.generate(ids, offer=old)).detail == WEIGHTS_CHANGED


def with_projections_moved(model: Path, folder: Path, *, by: float) -> Path:
    shutil.copytree(model, folder)
    weights, random = load_file(folder / "model.safetensors"), np.random.default_rng(5)
    moved = {
        name: matrix + by * random.standard_normal(matrix.shape).astype(np.float32)
        for name, matrix in weights.items()
        if "_proj" in name
    }
    save_file(weights | moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
