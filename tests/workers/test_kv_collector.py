"""A KV store that is kept within its limits, and never loses what somebody needs."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.artifact import ArtifactId, BootId
from service.domain.revision import RevisionDigest
from tests.workers.kv_connector.stored import conversation, names, put
from tests.workers.kv_connector.stores import Hands
from workers.kv_collector import Collector, Limits, Why, choose, main, run
from workers.kv_connector.block_file import sealed, unsealed
from workers.kv_connector.catalog import Catalog, Listed, ListedBlock, distinct_bytes
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import BlockStore, ObjectName, manifest_name

HOUR_MS = 3_600_000


@pytest.fixture
def folder(tmp_path: Path, quick_disk: None) -> LocalStore:
    return LocalStore(tmp_path / "kv")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def collect_until_settled(collector: Collector, start_ms: int) -> None:
    """Long after anything was written, and once more after the grace."""
    collector.collect(start_ms)
    collector.collect(start_ms + collector._store.grace_ms)


def handles(store: BlockStore) -> set[str]:
    return {listed.artifact for listed in Catalog(store).look().artifacts}


def use(hands: Hands, handle: str, at_ms: int) -> None:
    hands.age(manifest_name("acme", ArtifactId(handle)), at_ms)


def test_one_system_prompt_of_a_thousand_conversations_is_stored_once(folder: LocalStore) -> None:
    for number in range(1000):
        put(folder, f"kv_{number:08}", conversation(number, shared=4, own=1))
    contents = Catalog(folder).look()
    assert len(contents.artifacts) == 1000
    assert len(contents.blocks) == 4 + 1000
    assert distinct_bytes(contents.artifacts) == (4 + 1000) * 64
    assert not contents.orphans()


def test_tenants_share_no_block(block_store: BlockStore) -> None:
    for number in range(3):
        put(block_store, f"kv_{number:08}", conversation(0, shared=4, own=0), tenant=f"tenant {number}")
    assert len(Catalog(block_store).look().blocks) == 3 * 4


def test_expired_artifacts_go_with_the_blocks_that_only_they_name(
    block_store: BlockStore, hands: Hands
) -> None:
    later = now_ms() + HOUR_MS
    kept = put(block_store, "kv_kept0000", conversation(1, shared=2))
    gone = put(block_store, "kv_gone0000", conversation(2, shared=2), expires_ms=later - 1)
    collect_until_settled(Collector(block_store, Limits()), later)
    assert handles(block_store) == {kept.artifact}
    assert set(Catalog(block_store).look().blocks) == set(names(kept))
    assert not hands.exists(names(gone)[-1])


def test_beyond_the_budget_what_was_used_longest_ago_goes_first(
    block_store: BlockStore, hands: Hands
) -> None:
    later = now_ms() + HOUR_MS
    for number, used in enumerate((3, 1, 2)):
        put(block_store, f"kv_{number:08}", conversation(number))
        use(hands, f"kv_{number:08}", later - HOUR_MS + used)
    collector = Collector(block_store, Limits(budget_bytes=2 * 64))
    assert [(e.artifact, why) for e, why in collector.collect(later).evicted] == [
        ("kv_00000001", Why.OVER_BUDGET)
    ]


def test_loading_an_artifact_saves_it_from_eviction(block_store: BlockStore, hands: Hands) -> None:
    later = now_ms() + HOUR_MS
    for number in range(2):
        put(block_store, f"kv_{number:08}", conversation(number))
        use(hands, f"kv_{number:08}", 1_000 + number)
    block_store.use_manifest("acme", ArtifactId("kv_00000000"))
    hands.await_use(manifest_name("acme", ArtifactId("kv_00000000")))
    collect_until_settled(Collector(block_store, Limits(budget_bytes=64)), later)
    assert handles(block_store) == {"kv_00000000"}


def test_artifacts_unused_for_too_long_go(block_store: BlockStore, hands: Hands) -> None:
    later = now_ms() + HOUR_MS
    put(block_store, "kv_old00000", conversation(1))
    put(block_store, "kv_new00000", conversation(2))
    use(hands, "kv_old00000", later - 2 * HOUR_MS)
    collect_until_settled(Collector(block_store, Limits(max_age_ms=2 * HOUR_MS)), later)
    assert handles(block_store) == {"kv_new00000"}


def test_evicted_blocks_stay_for_whoever_reads_them_just_now(block_store: BlockStore, hands: Hands) -> None:
    later = now_ms() + HOUR_MS
    blocks = names(put(block_store, "kv_00000000", conversation(1), expires_ms=later))
    collector = Collector(block_store, Limits())
    collector.collect(later)
    collector.collect(later + block_store.grace_ms - 1)
    assert all(hands.exists(name) for name in blocks)
    collector.collect(later + block_store.grace_ms)
    assert not any(hands.exists(name) for name in blocks)


def test_blocks_that_await_their_manifest_stay(block_store: BlockStore, hands: Hands) -> None:
    """A writer found them standing just before; nobody named them then."""
    start = now_ms()
    manifest = put(block_store, "kv_00000000", conversation(1))
    block_store.remove(manifest_name("acme", manifest.artifact))
    for name in names(manifest):
        hands.age(name, 0)
    collector = Collector(block_store, Limits())
    collector.collect(start)
    for block, name in zip(manifest.blocks, names(manifest), strict=True):
        assert block_store.keep_block("acme", manifest.revision, block.key)
        assert hands.changed_ms(name) >= start - 1000
    collector.collect(start + block_store.grace_ms - 1000)
    assert all(hands.exists(name) for name in names(manifest))
    collector.collect(now_ms() + 2 * block_store.grace_ms)
    assert not any(hands.exists(name) for name in names(manifest))


def test_a_manifest_of_a_format_from_the_future_keeps_its_blocks(
    block_store: BlockStore, hands: Hands
) -> None:
    manifest = put(block_store, "kv_00000000", conversation(1))
    name = manifest_name("acme", manifest.artifact)
    hands.write(name, sealed(unsealed(hands.read(name)).replace(b'"format":1', b'"format":2,"more":[]')))
    collect_until_settled(Collector(block_store, Limits()), now_ms() + HOUR_MS)
    assert all(hands.exists(name) for name in names(manifest))


def test_a_manifest_that_the_store_does_not_give_just_now_keeps_its_blocks(
    block_store: BlockStore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor any block is taken for useless, since nobody knows what it names."""
    manifest = put(block_store, "kv_00000000", conversation(1))

    def fails(_name: ObjectName) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(block_store, "read", fails)
    collect_until_settled(Collector(block_store, Limits()), now_ms() + 8 * 24 * HOUR_MS)
    assert hands.exists(manifest_name("acme", manifest.artifact))
    assert all(hands.exists(name) for name in names(manifest))


def test_what_nobody_can_use_goes_after_a_while(block_store: BlockStore, hands: Hands) -> None:
    later = now_ms() + 8 * 24 * HOUR_MS
    manifest = put(block_store, "kv_00000000", conversation(1))
    hands.write(manifest_name("acme", manifest.artifact), b"")
    block_store.quarantine("acme", manifest.revision, manifest.blocks[0].key)
    hands.leave_over()
    collector = Collector(block_store, Limits())
    collector.collect(now_ms())
    contents = Catalog(block_store).look()
    assert len(contents.quarantined) == len(contents.unreadable) == len(contents.leftovers) == 1
    collector.collect(later)
    contents = Catalog(block_store).look()
    assert not contents.quarantined
    assert not contents.unreadable
    assert not contents.leftovers


def test_one_collector_at_a_time_works_on_a_folder(folder: LocalStore) -> None:
    put(folder, "kv_00000000", conversation(1), expires_ms=1)
    with folder.alone() as alone:
        assert alone
        run(folder, Limits(), [None])
        assert handles(folder) == {"kv_00000000"}
    run(folder, Limits(), [None])
    assert handles(folder) == set()


def test_a_store_that_does_not_answer_is_tried_again(
    folder: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    folder.root.parent.mkdir(exist_ok=True)
    folder.root.write_text("a file where the store should be")

    def passes() -> Iterator[None]:
        yield None
        folder.root.unlink()
        put(folder, "kv_00000000", conversation(1), expires_ms=1)
        yield None

    with caplog.at_level(logging.WARNING):
        run(folder, Limits(), passes())
    assert "has to wait for its collector" in caplog.text
    assert handles(folder) == set()


@pytest.mark.parametrize("option", ["--budget-gib", "--max-age-h", "--every-s"])
def test_a_limit_must_be_above_zero(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--store", "kv", option, "0"])
    assert f"{option} 0.0 must be greater than 0" in capsys.readouterr().err


def test_a_store_that_cannot_be_used_ends_the_process(
    capsys: pytest.CaptureFixture[str], bucket: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--store", "s3://no-such-bucket"])
    assert ended.value.code == 2
    assert "--store 's3://no-such-bucket' does not answer" in capsys.readouterr().err.splitlines()[-1]


def test_the_process_collects_until_it_is_ended(block_store: BlockStore) -> None:
    put(block_store, "kv_00000000", conversation(1), expires_ms=1)
    arguments = ["--store", block_store.address, "--every-s", "0.05"]
    process = subprocess.Popen([sys.executable, "-m", "workers.kv_collector", *arguments])
    try:
        deadline = time.monotonic() + 20
        while handles(block_store) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert handles(block_store) == set()
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait()


def listed(name: int, used_ms: int, expires_ms: int, blocks: frozenset[int]) -> Listed:
    return Listed(
        name=ObjectName(str(name)),
        artifact=ArtifactId(f"kv_{name:08}"),
        tenant="acme",
        revision=RevisionDigest("rev_"),
        producer=BootId("boot"),
        attempt="att",
        made_by="prefill",
        created_ms=0,
        expires_ms=expires_ms,
        used_ms=used_ms,
        tokens=1,
        blocks=tuple(ListedBlock(name=ObjectName(str(b)), checksum="", size=b + 1) for b in sorted(blocks)),
    )


entries = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(1, 20), st.frozensets(st.integers(0, 8), min_size=1, max_size=4)
    ),
    max_size=8,
)


@given(entries, st.integers(0, 60))
def test_what_stays_fits_the_budget_and_nothing_goes_needlessly(
    drawn: list[tuple[int, int, frozenset[int]]], budget: int
) -> None:
    artifacts = [listed(i, used, expires, blocks) for i, (used, expires, blocks) in enumerate(drawn)]
    chosen = choose(artifacts, Limits(budget_bytes=budget), now_ms=10)
    gone = {artifact.artifact for artifact, _ in chosen}
    staying = [artifact for artifact in artifacts if artifact.artifact not in gone]
    assert distinct_bytes(staying) <= budget
    assert all(artifact.expires_ms > 10 for artifact in staying)
    evicted = [artifact for artifact, why in chosen if why is Why.OVER_BUDGET]
    assert all(artifact.used_ms <= other.used_ms for artifact in evicted for other in staying)
    if evicted:
        assert distinct_bytes([*staying, evicted[-1]]) > budget
