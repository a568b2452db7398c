"""Handles, failures, corruption: each ends in a right answer or an error with a reason, with the engine up."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.engines.offers import (
    assert_equals_cold,
    block_files,
    empty,
    flip_one_bit,
    lengthen,
    manifest_path,
    published,
    refusal_of,
    spoil_header,
    truncate,
)
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.block_file import sealed, unsealed

pytestmark = pytest.mark.engine


def counted(engine: RealEngine, series: str) -> float:
    lines = engine.http.get(f"{engine.url}/everturn/metrics").raise_for_status().text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"everturn_kv_{series} "))


def test_f1_a_good_handle_is_read(v12_engine: RealEngine, second_v12_engine: RealEngine) -> None:
    """The twin of all that follows."""
    ids = prompt("F1")
    hits, tokens = counted(second_v12_engine, "hits_total"), counted(second_v12_engine, "hit_tokens_total")
    reply = second_v12_engine.generate(ids, offer=published(v12_engine, ids))
    assert reply.known.loaded is not None
    assert_equals_cold(second_v12_engine, reply, ids)
    assert counted(second_v12_engine, "hits_total") == hits + 1
    assert counted(second_v12_engine, "hit_tokens_total") == tokens + 192


@pytest.mark.parametrize(
    "handle",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "kv_0123456789/../../secret",
        "kv_\x00aaaaaaaaaa",
        "kv_" + "a" * 10_000,
        "",
        "kv_ABCDEFGHIJ",
        7,
        ["kv_aaaaaaaa"],
    ],
    ids=["path", "absolute", "path after a name", "nul", "10 kB", "empty", "upper case", "number", "list"],
)
def test_f1_what_is_no_handle_is_refused_before_any_read(v12_engine: RealEngine, handle: object) -> None:
    ids = prompt(303)
    reply = v12_engine.generate(ids, offer=handle)
    refusal = refusal_of(reply)
    assert refusal.reason is RefusalReason.HANDLE_INVALID
    assert len(refusal.artifact) <= 100
    assert_equals_cold(v12_engine, reply, ids)


def test_f1_an_unknown_handle_is_refused(v12_engine: RealEngine) -> None:
    assert (
        refusal_of(v12_engine.generate(prompt(304), offer=new_handle())).reason
        is RefusalReason.MANIFEST_MISSING
    )


def test_f1_a_handle_of_an_engine_that_restarted_is_read_and_the_engine_itself_is_not_asked(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    """An artifact outlives the boot that made it; a request meant for that boot does not."""
    ids = prompt("F1 restart")
    before = engine_hall.start(tiny_v12, v12_engine.store)
    handle = published(before, ids)
    engine_hall.stop(before)
    after = engine_hall.start(tiny_v12, v12_engine.store)
    assert after.generate(ids, offer=handle, headers={"x-everturn-boot": before.boot}).status == 409
    reply = after.generate(ids, offer=handle, headers={"x-everturn-boot": after.boot})
    assert reply.known.loaded is not None
    assert reply.known.loaded.producer == before.boot
    assert_equals_cold(after, reply, ids)
    engine_hall.stop(after)


def test_f1_blocks_beyond_the_prompt_are_not_read(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids = prompt("F1 range")
    handle = published(v12_engine, ids)
    reply = second_v12_engine.generate(ids[:70], offer=handle)
    assert reply.known.loaded is not None
    assert reply.known.loaded.tokens == 64
    assert_equals_cold(second_v12_engine, reply, ids[:70])


def test_f1_a_handle_whose_blocks_were_evicted_is_refused(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids = prompt("F1 evicted")
    handle = published(v12_engine, ids)
    for path in block_files(v12_engine, handle):
        path.unlink()
    failed = second_v12_engine.generate(ids, offer=handle)
    assert failed.status == 500
    assert refusal_of(failed).reason is RefusalReason.BLOCK_MISSING
    assert_equals_cold(second_v12_engine, second_v12_engine.generate(ids), ids)


def test_f1_a_handle_reused_after_eviction_gives_no_other_prompts_answer(v12_engine: RealEngine) -> None:
    ids, other = prompt("F1 reused"), prompt("F1 reused by another")
    handle = published(v12_engine, ids)
    manifest_path(v12_engine, handle).unlink()
    assert v12_engine.generate(other, publish=handle, max_tokens=1).known.published is not None
    reply = v12_engine.cold(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.TOKEN_MISMATCH
    assert_equals_cold(v12_engine, reply, ids)
    assert v12_engine.cold(other, offer=handle).known.loaded is not None


def test_f1_a_handle_of_another_tenant_is_refused(v12_engine: RealEngine) -> None:
    ids = prompt("F1 tenant")
    reply = v12_engine.cold(ids, offer=published(v12_engine, ids), tenant="tenant_b")
    assert refusal_of(reply).reason is RefusalReason.MANIFEST_MISSING
    assert_equals_cold(v12_engine, reply, ids)


def test_f1_another_prompts_artifact_is_refused(v12_engine: RealEngine) -> None:
    handle = published(v12_engine, prompt(308))
    ids = prompt(309)
    reply = v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.TOKEN_MISMATCH
    assert_equals_cold(v12_engine, reply, ids)


@pytest.mark.parametrize(
    "refused", [[0], [3], [5], [0, 1, 2, 3, 4, 5]], ids=["first", "amid", "last", "every"]
)
def test_f2_whichever_blocks_are_refused_it_ends_and_equals_cold(
    recomputing: RealEngine, v12_engine: RealEngine, refused: list[int]
) -> None:
    """In an engine that recomputes by itself; one that fails the request instead is in F4. Ours loads asynchronously, always."""
    ids = prompt(f"F2 {refused}")
    handle = published(v12_engine, ids)
    files = block_files(v12_engine, handle)
    for index in refused:
        flip_one_bit(files[index])
    reply = recomputing.generate(ids, offer=handle, publish=new_handle())
    assert reply.status == 200
    assert refusal_of(reply).reason is RefusalReason.CHECKSUM_MISMATCH
    assert reply.known.loaded is None
    assert reply.known.publish_failure == "this attempt was promised KV that was then refused"
    assert_equals_cold(recomputing, reply, ids)


@pytest.fixture(scope="module")
def recomputing(engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path) -> Iterator[RealEngine]:
    engine = engine_hall.start(tiny_v12, v12_engine.store, kv_load_failure_policy="recompute")
    yield engine
    engine_hall.stop(engine)


@pytest.mark.parametrize("index", [0, 3, 5], ids=["first block", "a block amid", "last block"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_one_bit, RefusalReason.CHECKSUM_MISMATCH),
        (truncate, RefusalReason.BLOCK_UNREADABLE),
        (lengthen, RefusalReason.BLOCK_UNREADABLE),
        (spoil_header, RefusalReason.BLOCK_UNREADABLE),
        (empty, RefusalReason.BLOCK_UNREADABLE),
        (Path.unlink, RefusalReason.BLOCK_MISSING),
    ],
)
def test_f4_a_damaged_block_fails_the_request_and_goes_out_of_the_way_of_its_repair(
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
    series = f'refusals_total{{reason="{reason}"}}'
    before = counted(second_v12_engine, series)
    failed = second_v12_engine.generate(ids, offer=handle, publish=new_handle())
    assert failed.status == 500
    assert refusal_of(failed).reason is reason
    assert counted(second_v12_engine, series) == before + 1
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
def test_f4_a_damaged_manifest_is_refused(v12_engine: RealEngine, damage: Callable[[bytes], bytes]) -> None:
    ids = prompt(310)
    handle = published(v12_engine, ids)
    path = manifest_path(v12_engine, handle)
    path.write_bytes(damage(path.read_bytes()))
    reply = v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.MANIFEST_UNREADABLE
    assert_equals_cold(v12_engine, reply, ids)


def test_f4_a_block_of_another_revision_is_refused_beside_its_own_manifest(
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


def test_f4_a_damaged_block_is_replaced_when_its_tokens_are_published_again(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids = prompt(313)
    flip_one_bit(block_files(v12_engine, published(v12_engine, ids))[1])
    handle = published(v12_engine, ids)
    read = second_v12_engine.generate(ids, offer=handle)
    assert read.known.loaded is not None
    assert_equals_cold(second_v12_engine, read, ids)


def test_f5_a_handle_that_was_refused_is_not_tried_again_for_the_same_request(
    recomputing: RealEngine, v12_engine: RealEngine
) -> None:
    """Though vLLM asks again, when it recomputes. That no later attempt is offered it is the service's part, tested there."""
    ids = prompt("F5")
    handle = published(v12_engine, ids)
    truncate(block_files(v12_engine, handle)[2])
    refusals = counted(recomputing, 'refusals_total{reason="block_unreadable"}')
    reply = recomputing.generate(ids, offer=handle)
    assert reply.status == 200
    assert counted(recomputing, 'refusals_total{reason="block_unreadable"}') == refusals + 1
    assert_equals_cold(recomputing, reply, ids)


def test_f6_an_artifact_that_has_expired_is_refused(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids, handle = prompt(307), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1, lease_s=1)
    time.sleep(1.1)
    reply = second_v12_engine.generate(ids, offer=handle)
    assert refusal_of(reply).reason is RefusalReason.LEASE_EXPIRED
    assert_equals_cold(second_v12_engine, reply, ids)


LEASE_S = 6
AHEAD = 3
PATIENCE_S = 30.0


def test_f6_an_artifact_that_expires_while_its_request_waits_in_the_engines_queue_is_refused(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    """The engine answers one at a time; whoever is ahead goes when the lease is over."""
    busy = engine_hall.start(tiny_v12, v12_engine.store, "--max-num-seqs", "1")
    ids, handle = prompt("F6 queued"), new_handle()
    assert busy.generate(ids, offer=published(v12_engine, ids)).known.loaded is not None
    with ThreadPoolExecutor(1) as pool:
        with talking(busy):
            made = v12_engine.generate(ids, publish=handle, max_tokens=1, lease_s=LEASE_S)
            expires = time.time() + LEASE_S
            assert made.known.published is not None
            ahead = load_of(busy)
            queued = pool.submit(busy.generate, ids, offer=handle, cache_salt="only from the store")
            wait_for(lambda: queued.done() or load_of(busy) > ahead)
            assert not queued.done(), queued.result()
            assert time.time() < expires - 1, "it was in the queue while the lease still held"
            time.sleep(max(expires + 0.2 - time.time(), 0))
            assert not queued.done()
        reply = queued.result()
    assert refusal_of(reply).reason is RefusalReason.LEASE_EXPIRED
    assert_equals_cold(busy, reply, ids)
    engine_hall.stop(busy)


def load_of(engine: RealEngine) -> int:
    return int(engine.http.get(f"{engine.url}/load").json()["server_load"])


@contextmanager
def talking(engine: RealEngine) -> Iterator[None]:
    """Answers are under way, and would be for long: until this is over they keep whoever comes later waiting."""
    sampling = {"max_tokens": 3800, "temperature": 0, "ignore_eos": True}
    body = {"token_ids": prompt("F6 ahead"), "sampling_params": sampling, "stream": True}
    url = f"{engine.url}/inference/v1/generate"
    with ExitStack() as streams:
        told = [
            streams.enter_context(engine.http.stream("POST", url, json=body)).iter_lines()
            for _ in range(AHEAD)
        ]
        assert next(told[0]).startswith("data: {")
        yield
        del told  # a stream is closed with its lines


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
