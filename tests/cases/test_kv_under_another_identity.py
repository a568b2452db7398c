"""KV under another identity: every way in which an operator can change a model, each with the right outcome, on real vLLM.

K5's updates in place and K6, adapters, have files of their own.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from service.domain.artifact import RefusalReason
from service.domain.revision import Descriptor
from stack.ports import find_free_port
from tests.engines.checkpoints import TinyModel, flip_one_weight_bit
from tests.engines.offers import (
    assert_equals_cold,
    block_files,
    manifest_path,
    published,
    refusal_of,
    rewrite_manifest,
)
from tests.engines.real import EngineHall, RealEngine
from tests.workers import fake_api
from tests.workers.fake_api import FakeApi
from tests.workers.kv_connector.prompts import prompt
from tests.workers.launched import REPOSITORY
from workers.kv_connector.block_file import BlockHeader, unsealed


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving(find_free_port()) as serving:
        yield serving


@pytest.mark.engine
def test_k1_other_weights_of_equal_shape_are_refused_by_name(
    v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    ids = prompt(300)
    reply = v13_engine.generate(ids, offer=published(v12_engine, ids))
    refusal = refusal_of(reply)
    assert refusal.reason is RefusalReason.REVISION_MISMATCH
    assert refusal.differing == ("weights",)
    assert refusal.artifact_revision == v12_engine.revision
    assert refusal.artifact_producer == v12_engine.boot
    assert reply.known.revision == v13_engine.revision
    assert_equals_cold(v13_engine, reply, ids)
    assert reply.tokens != v12_engine.cold(ids).tokens


@pytest.mark.engine
@pytest.mark.parametrize(
    "change",
    [TinyModel(sigma=0.1).write, TinyModel(sigma=0.005).write, None],
    ids=["0.1 sigma", "0.005 sigma", "one bit"],
)
def test_k1_weights_that_moved_however_little_are_refused_at_the_same_path(
    engine_hall: EngineHall,
    v12_engine: RealEngine,
    tmp_path: Path,
    change: Callable[[Path], Path] | None,
) -> None:
    """As where every version is mounted at /models: the folder's name says nothing."""
    ids, mount = prompt(301), tmp_path / "models"
    TinyModel().write(tmp_path / "v12")
    mount.symlink_to(tmp_path / "v12")
    before = engine_hall.start(mount, v12_engine.store)
    assert before.revision == v12_engine.revision
    handle = published(before, ids)
    engine_hall.stop(before)
    if change is not None:
        mount.unlink()
        mount.symlink_to(change(tmp_path / "v13"))
    else:
        flip_one_weight_bit(tmp_path / "v12")
    after = engine_hall.start(mount, v12_engine.store)
    reply = after.generate(ids, offer=handle)
    assert refusal_of(reply).differing == ("weights",)
    assert_equals_cold(after, reply, ids)
    engine_hall.stop(after)


@pytest.mark.engine
def test_k1_the_same_weights_at_another_path_are_reused(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids = prompt("K1 reuse")
    reply = second_v12_engine.generate(ids, offer=published(v12_engine, ids))
    assert reply.known.loaded is not None
    assert reply.known.loaded.tokens == 192
    assert_equals_cold(second_v12_engine, reply, ids)


def rope(**parameters: object) -> TinyModel:
    return TinyModel(config={"rope_parameters": {"rope_theta": 10000.0, **parameters}})


LONG = rope(
    rope_type="longrope",
    short_factor=[1.0] * 16,
    long_factor=[4.0] * 16,
    original_max_position_embeddings=512,
    factor=16.0,
)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("before", "after", "lengths", "field"),
    [
        (
            rope(rope_type="linear", factor=1.0),
            rope(rope_type="linear", factor=2.0),
            (1024, 1024),
            "position.rope_parameters.factor",
        ),
        (LONG, LONG, (512, 1024), "position.max_model_len"),
    ],
    ids=["rope factor", "LongRoPE length"],
)
def test_k2_other_positions_of_the_same_weights_are_refused(
    engine_hall: EngineHall,
    tmp_path: Path,
    before: TinyModel,
    after: TinyModel,
    lengths: tuple[int, int],
    field: str,
) -> None:
    ids, store = prompt("K2"), tmp_path / "kv"
    producer = engine_hall.start(before.write(tmp_path / "a"), store, "--max-model-len", str(lengths[0]))
    handle = published(producer, ids)
    twin = producer.generate(ids, offer=handle, cache_salt="only from the store")
    assert twin.known.loaded is not None
    assert_equals_cold(producer, twin, ids)
    engine_hall.stop(producer)
    consumer = engine_hall.start(after.write(tmp_path / "b"), store, "--max-model-len", str(lengths[1]))
    reply = consumer.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.REVISION_MISMATCH
    assert refusal_of(reply).differing == (field,)
    assert_equals_cold(consumer, reply, ids)
    engine_hall.stop(consumer)


HALF = ("--dtype", "bfloat16")
EIGHT_BITS = pytest.mark.skipif(
    not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()),
    reason="vLLM keeps KV in eight bits on processors with AVX-512 or AMX alone",
)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("before", "after", "made_as", "differing"),
    [
        (HALF, ("--dtype", "float16"), "bfloat16", {"kv_dtype", "compute_dtype"}),
        pytest.param(
            (*HALF, "--kv-cache-dtype", "fp8_e4m3"),
            (*HALF, "--kv-cache-dtype", "fp8_e5m2"),
            "fp8_e4m3",
            {"kv_dtype"},
            marks=EIGHT_BITS,
        ),
    ],
    ids=["16 bits", "8 bits"],
)
def test_k3_a_kv_dtype_of_equal_page_size_is_refused(
    engine_hall: EngineHall,
    tiny_v12: Path,
    tmp_path: Path,
    before: tuple[str, ...],
    after: tuple[str, ...],
    made_as: str,
    differing: set[str],
) -> None:
    ids, store = prompt("K3"), tmp_path / "kv"
    producer = engine_hall.start(tiny_v12, store, *before)
    handle = published(producer, ids)
    twin = producer.generate(ids, offer=handle, cache_salt="twin")
    assert twin.known.loaded is not None
    assert_equals_cold(producer, twin, ids)
    made_of = Descriptor.from_json(producer.identity["descriptor"]).kv
    assert (made_of.kv_dtype, made_of.compute_dtype) == (made_as, "bfloat16")
    engine_hall.stop(producer)
    consumer = engine_hall.start(tiny_v12, store, *after)
    reply = consumer.generate(ids, offer=handle)
    assert differing <= set(refusal_of(reply).differing)
    assert_equals_cold(consumer, reply, ids)
    theirs = block_files(producer, handle)[0], block_files(consumer, published(consumer, ids))[0]
    assert len({file_size(path) for path in theirs}) == 1, "nothing but identity tells them apart"
    engine_hall.stop(consumer)


def file_size(path: Path) -> int:
    """Of the payload."""
    with path.open("rb") as file:
        return BlockHeader.read_from(file).size


def swapped(payload: bytes, one: int, other: int, *, parts: int) -> bytes:
    """A block is two layers of two heads, each its K and then its V."""
    size = len(payload) // parts
    pieces = [payload[at * size : (at + 1) * size] for at in range(parts)]
    pieces[one], pieces[other] = pieces[other], pieces[one]
    return b"".join(pieces)


@pytest.mark.engine
@pytest.mark.parametrize(
    "permuted",
    [
        lambda payload: swapped(payload, 0, 1, parts=2),
        lambda payload: swapped(payload, 0, 1, parts=4),
        lambda payload: swapped(payload, 0, 1, parts=8),
        lambda payload: bytes(len(payload)),
    ],
    ids=["layers swapped", "heads swapped", "K and V of a head swapped", "all zero"],
)
def test_k4_a_payload_rearranged_at_equal_size_is_refused(
    v12_engine: RealEngine, second_v12_engine: RealEngine, permuted: Callable[[bytes], bytes]
) -> None:
    ids = prompt(f"K4 {permuted(bytes(range(8)))!r}")
    handle = published(v12_engine, ids)
    path = block_files(v12_engine, handle)[1]
    size = int(json.loads(unsealed(manifest_path(v12_engine, handle).read_bytes()))["blocks"][1]["size"])
    data = path.read_bytes()
    assert permuted(data[-size:]) != data[-size:]
    path.write_bytes(data[:-size] + permuted(data[-size:]))
    failed = second_v12_engine.generate(ids, offer=handle)
    assert failed.status == 500
    assert refusal_of(failed).reason is RefusalReason.CHECKSUM_MISMATCH
    assert_equals_cold(second_v12_engine, second_v12_engine.generate(ids), ids)


@pytest.mark.engine
def test_k5_warm_equals_cold_before_an_engine_is_replaced_and_after_it(
    v12_engine: RealEngine, second_v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    ids = prompt("five runs")
    cold = second_v12_engine.cold(ids)
    old = published(v12_engine, ids)
    warm = second_v12_engine.generate(ids, offer=old)
    warm_after = v13_engine.generate(ids, offer=old)
    cold_new = v13_engine.cold(ids)
    warm_new = v13_engine.generate(ids, offer=published(v13_engine, ids), cache_salt="only from the store")
    assert warm.known.loaded is not None
    assert (warm.tokens, warm.logprobs) == (cold.tokens, cold.logprobs)
    assert warm_after.known.loaded is None
    assert (warm_after.tokens, warm_after.logprobs) == (cold_new.tokens, cold_new.logprobs)
    assert warm_new.known.loaded is not None
    assert (warm_new.tokens, warm_new.logprobs) == (cold_new.tokens, cold_new.logprobs)
    assert cold_new.tokens != cold.tokens


@pytest.mark.engine
def test_k8_another_tenant_finds_nothing_under_a_handle_that_leaked(v12_engine: RealEngine) -> None:
    ids = prompt(305)
    reply = v12_engine.generate(ids, offer=published(v12_engine, ids), tenant="tenant_b")
    assert refusal_of(reply).reason is RefusalReason.MANIFEST_MISSING


@pytest.mark.engine
def test_k8_another_tenants_manifest_is_refused_where_it_was_copied_to(v12_engine: RealEngine) -> None:
    ids = prompt(306)
    handle = published(v12_engine, ids)
    copy = manifest_path(v12_engine, handle, "tenant_b")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(manifest_path(v12_engine, handle).read_bytes())
    reply = v12_engine.generate(ids, offer=handle, tenant="tenant_b")
    assert refusal_of(reply).reason is RefusalReason.TENANT_MISMATCH


@pytest.mark.engine
@pytest.mark.parametrize("salt", [None, "the same"])
def test_k8_tenants_do_not_share_the_engines_own_prefix_cache(
    v12_engine: RealEngine, salt: str | None
) -> None:
    ids = prompt(f"tenants {salt}")
    v12_engine.generate(ids, cache_salt=salt)
    assert v12_engine.generate(ids, cache_salt=salt).known.local_tokens == 192
    assert v12_engine.generate(ids, cache_salt=salt, tenant="tenant_b").known.local_tokens == 0


@pytest.mark.engine
def test_k9_a_toggle_that_changes_numerics_is_refused(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    ids = prompt("K9")
    handle = published(v12_engine, ids)
    engine = engine_hall.start(tiny_v12, v12_engine.store, env={"VLLM_CPU_ATTN_SPLIT_KV": "0"})
    reply = engine.generate(ids, offer=handle)
    assert refusal_of(reply).differing == ("environment.VLLM_CPU_ATTN_SPLIT_KV",)
    own = engine.generate(ids, offer=published(engine, ids), cache_salt="twin")
    assert own.known.loaded is not None
    engine_hall.stop(engine)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"descriptor": None}, RefusalReason.MANIFEST_UNREADABLE),
        ({"revision": None}, RefusalReason.MANIFEST_UNREADABLE),
        ({"descriptor": {}}, RefusalReason.MANIFEST_UNREADABLE),
        ({"tensors": []}, RefusalReason.MANIFEST_INCOMPLETE),
        ({"blocks": []}, RefusalReason.MANIFEST_UNREADABLE),
    ],
    ids=["no descriptor", "no digest", "empty descriptor", "no tensor", "no block"],
)
def test_k10_an_artifact_that_does_not_say_all_of_what_it_is_is_refused(
    v12_engine: RealEngine,
    second_v12_engine: RealEngine,
    changes: dict[str, object],
    reason: RefusalReason,
) -> None:
    """Never accepted as one of an older kind: there is no older kind."""
    ids = prompt(f"K10 {changes}")
    handle = published(v12_engine, ids)
    twin = second_v12_engine.generate(ids, offer=handle, cache_salt="twin")
    assert twin.known.loaded is not None
    rewrite_manifest(v12_engine, handle, **changes)
    reply = second_v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is reason
    assert_equals_cold(second_v12_engine, reply, ids)


@pytest.mark.engine
def test_k10_a_manifest_that_lacks_a_tensor_is_refused(v12_engine: RealEngine) -> None:
    ids = prompt(311)
    handle = published(v12_engine, ids)
    tensors = json.loads(unsealed(manifest_path(v12_engine, handle).read_bytes()))["tensors"]
    rewrite_manifest(v12_engine, handle, tensors=tensors[:1])
    assert refusal_of(v12_engine.generate(ids, offer=handle)).reason is RefusalReason.MANIFEST_INCOMPLETE


@pytest.mark.engine
def test_k11_an_engine_that_is_not_what_it_was_started_as_never_registers(
    v13_engine: RealEngine, tiny_v12: Path, engine_zygote: Path, api: FakeApi, tmp_path: Path
) -> None:
    """Measured beats claimed, whatever label it was given."""
    expected = Descriptor.from_json(v13_engine.identity["descriptor"])
    api.revisions[expected.digest] = expected.to_json()
    (tmp_path / "key").write_text("secret")
    options: dict[str, object] = {
        "--model": tiny_v12,
        "--served-model-name": "v13",
        "--port": find_free_port(),
        "--api": api.url,
        "--key-file": tmp_path / "key",
        "--store": tmp_path / "kv",
        "--run-dir": tmp_path / "run",
        "--zygote": engine_zygote,
        "--kv-cache-memory-bytes": 32 << 20,
        "--expect": expected.digest,
    }
    arguments = [str(part) for pair in options.items() for part in pair]
    ended = subprocess.run(
        [sys.executable, "-m", "workers.launcher", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.splitlines()[-1].endswith("differing fields: weights.")
    assert not any(call.method == "POST" for call in api.calls)


@pytest.mark.engine
def test_k11_an_engine_turns_away_those_who_believe_its_label(
    v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    ids = prompt("K11")
    wrong = v12_engine.generate(ids, headers={"x-everturn-revision": v13_engine.revision})
    assert (wrong.status, wrong.document["error"]["differing_fields"]) == (409, ["weights"])
    assert v12_engine.generate(ids, headers={"x-everturn-revision": v12_engine.revision}).status == 200
