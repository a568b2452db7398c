"""What the consumer does with KV that it must not use: it refuses, says why, stays up, and answers as if cold."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.domain.artifact import ArtifactId, RefusalReason
from service.domain.evidence import Refusal
from service.domain.revision import RevisionDigest
from tests.engines.checkpoints import TinyModel, flip_one_weight_bit
from tests.engines.real import TENANT, EngineHall, RealEngine, Reply, new_handle
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.block_file import sealed, unsealed
from workers.kv_connector.store import BlockStore

pytestmark = pytest.mark.engine


def published(engine: RealEngine, ids: list[int]) -> str:
    handle = new_handle()
    reply = engine.generate(ids, publish=handle, max_tokens=1)
    assert reply.known.published is not None
    return handle


def refusal_of(reply: Reply) -> Refusal:
    assert reply.known.loaded is None
    assert reply.known.refusal is not None
    return reply.known.refusal


def assert_equals_cold(engine: RealEngine, reply: Reply, ids: list[int]) -> None:
    cold = engine.cold(ids)
    assert (reply.tokens, reply.logprobs) == (cold.tokens, cold.logprobs)


def block_files(engine: RealEngine, handle: str) -> list[Path]:
    store = BlockStore(engine.store)
    manifest = json.loads(store.read_manifest(TENANT, ArtifactId(handle)))
    return [
        store.block_path(TENANT, RevisionDigest(manifest["revision"]), block["key"])
        for block in manifest["blocks"]
    ]


def test_other_weights_of_equal_shape_are_refused_by_name(
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


@pytest.mark.parametrize("change", [TinyModel(sigma=0.005).write, None], ids=["0.005 sigma", "one bit"])
def test_weights_that_moved_too_little_to_see_are_refused_at_the_same_path(
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


def test_warm_equals_cold_before_an_upgrade_and_after_it(
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


def test_after_a_rollback_the_old_revision_reads_its_own_and_not_the_new_ones(
    v12_engine: RealEngine, second_v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    ids = prompt(302)
    old, new = published(v12_engine, ids), published(v13_engine, ids)
    assert refusal_of(second_v12_engine.generate(ids, offer=new)).differing == ("weights",)
    assert second_v12_engine.generate(ids, offer=old, cache_salt="rolled back").known.loaded is not None


@pytest.mark.parametrize(
    "handle",
    [
        "../../../etc/passwd",
        "kv_\x00aaaaaaaaaa",
        "kv_" + "a" * 10_000,
        "",
        "kv_ABCDEFGHIJ",
        7,
        ["kv_aaaaaaaa"],
    ],
    ids=["path", "nul", "10 kB", "empty", "upper case", "number", "list"],
)
def test_what_is_no_handle_is_refused_before_any_read(v12_engine: RealEngine, handle: object) -> None:
    ids = prompt(303)
    reply = v12_engine.generate(ids, offer=handle)
    refusal = refusal_of(reply)
    assert refusal.reason is RefusalReason.HANDLE_INVALID
    assert len(refusal.artifact) <= 100
    assert_equals_cold(v12_engine, reply, ids)


def test_an_unknown_handle_is_refused(v12_engine: RealEngine) -> None:
    assert (
        refusal_of(v12_engine.generate(prompt(304), offer=new_handle())).reason
        is RefusalReason.MANIFEST_MISSING
    )


def test_another_tenant_finds_nothing_under_a_handle_that_leaked(v12_engine: RealEngine) -> None:
    ids = prompt(305)
    reply = v12_engine.generate(ids, offer=published(v12_engine, ids), tenant="tenant_b")
    assert refusal_of(reply).reason is RefusalReason.MANIFEST_MISSING


def test_another_tenants_manifest_is_refused_where_it_was_copied_to(v12_engine: RealEngine) -> None:
    ids = prompt(306)
    handle = published(v12_engine, ids)
    store = BlockStore(v12_engine.store)
    copy = store.manifest_path("tenant_b", ArtifactId(handle))
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(store.manifest_path(TENANT, ArtifactId(handle)).read_bytes())
    reply = v12_engine.generate(ids, offer=handle, tenant="tenant_b")
    assert refusal_of(reply).reason is RefusalReason.TENANT_MISMATCH


@pytest.mark.parametrize("salt", [None, "the same"])
def test_tenants_do_not_share_the_engines_own_prefix_cache(v12_engine: RealEngine, salt: str | None) -> None:
    ids = prompt(f"tenants {salt}")
    v12_engine.generate(ids, cache_salt=salt)
    assert v12_engine.generate(ids, cache_salt=salt).known.local_tokens == 192
    assert v12_engine.generate(ids, cache_salt=salt, tenant="tenant_b").known.local_tokens == 0


def test_an_expired_artifact_is_refused(v12_engine: RealEngine, second_v12_engine: RealEngine) -> None:
    ids, handle = prompt(307), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1, lease_s=1)
    time.sleep(1.1)
    assert refusal_of(second_v12_engine.generate(ids, offer=handle)).reason is RefusalReason.LEASE_EXPIRED


def test_another_prompts_artifact_is_refused(v12_engine: RealEngine) -> None:
    handle = published(v12_engine, prompt(308))
    ids = prompt(309)
    reply = v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.TOKEN_MISMATCH
    assert_equals_cold(v12_engine, reply, ids)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"{" + data,
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data.replace(b'"attempt":"att_', b'"attempt":"atu_'),
        lambda data: sealed(b"{" + unsealed(data)),
        lambda data: sealed(unsealed(data).replace(b'"format":1', b'"format":2')),
        lambda data: sealed(unsealed(data).replace(b'"block_size":32', b'"block_size":16', 1)),
        lambda data: sealed(unsealed(data).replace(b'"format":1', b'"format":1,"unknown":1')),
    ],
    ids=["seal", "truncated", "empty", "bit", "not JSON", "future format", "block size", "unknown field"],
)
def test_a_damaged_manifest_is_refused(v12_engine: RealEngine, damage: Callable[[bytes], bytes]) -> None:
    ids = prompt(310)
    handle = published(v12_engine, ids)
    path = BlockStore(v12_engine.store).manifest_path(TENANT, ArtifactId(handle))
    path.write_bytes(damage(path.read_bytes()))
    reply = v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.MANIFEST_UNREADABLE
    assert_equals_cold(v12_engine, reply, ids)


def test_a_manifest_that_lacks_a_tensor_is_refused(v12_engine: RealEngine) -> None:
    ids = prompt(311)
    handle = published(v12_engine, ids)
    path = BlockStore(v12_engine.store).manifest_path(TENANT, ArtifactId(handle))
    manifest = json.loads(unsealed(path.read_bytes()))
    del manifest["tensors"][1]
    path.write_bytes(sealed(json.dumps(manifest).encode()))
    assert refusal_of(v12_engine.generate(ids, offer=handle)).reason is RefusalReason.MANIFEST_INCOMPLETE


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def spoil_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


@pytest.mark.parametrize("index", [0, 3, 5], ids=["first block", "a block amid", "last block"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_one_bit, RefusalReason.CHECKSUM_MISMATCH),
        (truncate, RefusalReason.BLOCK_UNREADABLE),
        (lengthen, RefusalReason.BLOCK_UNREADABLE),
        (spoil_header, RefusalReason.BLOCK_UNREADABLE),
        (Path.unlink, RefusalReason.BLOCK_MISSING),
    ],
)
def test_a_damaged_block_fails_the_request_and_goes_out_of_the_way_of_its_repair(
    v12_engine: RealEngine,
    second_v12_engine: RealEngine,
    damage: Callable[[Path], None],
    reason: RefusalReason,
    index: int,
) -> None:
    ids = prompt(f"{reason} {index} {damage}")
    handle = published(v12_engine, ids)
    path = block_files(v12_engine, handle)[index]
    damage(path)
    failed = second_v12_engine.generate(ids, offer=handle, publish=new_handle())
    assert failed.status == 500
    assert refusal_of(failed).reason is reason
    assert failed.known.published is None
    assert failed.known.publish_failure is not None
    assert not path.exists()
    if damage is not Path.unlink:
        assert list((v12_engine.store / "quarantine").glob(f"{path.name}.*"))
    assert second_v12_engine.is_healthy()
    again = second_v12_engine.generate(ids, publish=new_handle())
    assert again.known.published is not None
    assert path.exists()
    assert_equals_cold(second_v12_engine, again, ids)


def test_a_block_of_another_tenant_or_revision_is_refused_beside_its_own_manifest(
    v12_engine: RealEngine, second_v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    """The manifest is right, the checksum beside the bytes is right: only what the block says of itself tells."""
    ids = prompt(312)
    ours, theirs = published(v12_engine, ids), published(v13_engine, ids)
    path = block_files(v12_engine, ours)[2]
    path.unlink()
    path.write_bytes(block_files(v13_engine, theirs)[2].read_bytes())
    failed = second_v12_engine.generate(ids, offer=ours)
    assert failed.status == 500
    assert refusal_of(failed).reason is RefusalReason.REVISION_MISMATCH


def test_a_damaged_block_is_replaced_when_its_tokens_are_published_again(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids = prompt(313)
    flip_one_bit(block_files(v12_engine, published(v12_engine, ids))[1])
    handle = published(v12_engine, ids)
    read = second_v12_engine.generate(ids, offer=handle)
    assert read.known.loaded is not None
    assert_equals_cold(second_v12_engine, read, ids)


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


def test_an_engine_that_recomputes_after_a_refused_load_answers_as_if_cold(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    ids = prompt(316)
    handle = published(v12_engine, ids)
    flip_one_bit(block_files(v12_engine, handle)[3])
    engine = engine_hall.start(tiny_v12, v12_engine.store, kv_load_failure_policy="recompute")
    reply = engine.generate(ids, offer=handle, publish=new_handle())
    assert reply.status == 200
    assert refusal_of(reply).reason is RefusalReason.CHECKSUM_MISMATCH
    assert reply.known.publish_failure == "this attempt was promised KV that was then refused"
    assert_equals_cold(engine, reply, ids)
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


def test_an_engine_that_may_load_adapters_has_no_revision_and_refuses_everything(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    ids = prompt(315)
    handle = published(v12_engine, ids)
    engine = engine_hall.start(tiny_v12, v12_engine.store, "--enable-lora")
    answer = engine.http.get(f"{engine.url}/everturn/identity")
    assert answer.status_code == 503
    assert "adapter" in answer.json()["error"]["message"].lower()
    reply = engine.generate(ids, offer=handle, publish=new_handle())
    assert refusal_of(reply).reason is RefusalReason.REVISION_UNKNOWN
    assert reply.known.publish_failure == "this engine has not measured itself"
    claimed = engine.generate(ids, headers={"x-everturn-revision": v12_engine.revision})
    assert claimed.status == 409
    engine_hall.stop(engine)
