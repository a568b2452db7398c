"""A KV store that is kept within its limits, and never loses what somebody needs."""

import logging
import os
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
from tests.workers.kv_connector.stored import conversation, paths, put
from workers.kv_collector import GRACE_MS, Collector, Limits, Why, choose, main, only_collector, run
from workers.kv_connector.block_file import sealed, unsealed
from workers.kv_connector.catalog import Catalog, Listed, ListedBlock, distinct_bytes
from workers.kv_connector.store import BlockStore

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlockStore:
    """Thousands of files, which no test needs to outlive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return BlockStore(tmp_path / "kv")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def collect_until_settled(collector: Collector, start_ms: int) -> None:
    """Long after anything was written, and once more after the grace."""
    collector.collect(start_ms)
    collector.collect(start_ms + GRACE_MS)


def handles(store: BlockStore) -> set[str]:
    return {listed.artifact for listed in Catalog(store).look().artifacts}


def use(store: BlockStore, handle: str, at_ms: int) -> None:
    path = store.manifest_path("acme", ArtifactId(handle))
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_one_system_prompt_of_a_thousand_conversations_is_stored_once(store: BlockStore) -> None:
    for number in range(1000):
        put(store, f"kv_{number:08}", conversation(number, shared=4, own=1))
    contents = Catalog(store).look()
    assert len(contents.artifacts) == 1000
    assert len(contents.blocks) == 4 + 1000
    assert distinct_bytes(contents.artifacts) == (4 + 1000) * 64
    assert not contents.orphans()


def test_tenants_share_no_block(store: BlockStore) -> None:
    for number in range(3):
        put(store, f"kv_{number:08}", conversation(0, shared=4, own=0), tenant=f"tenant {number}")
    assert len(Catalog(store).look().blocks) == 3 * 4


def test_expired_artifacts_go_with_the_blocks_that_only_they_name(store: BlockStore) -> None:
    later = now_ms() + HOUR_MS
    kept = put(store, "kv_kept0000", conversation(1, shared=2))
    gone = put(store, "kv_gone0000", conversation(2, shared=2), expires_ms=later - 1)
    collect_until_settled(Collector(store, Limits()), later)
    assert handles(store) == {kept.artifact}
    assert set(Catalog(store).look().blocks) == set(paths(store, kept))
    assert not paths(store, gone)[-1].exists()


def test_beyond_the_budget_what_was_used_longest_ago_goes_first(store: BlockStore) -> None:
    later = now_ms() + HOUR_MS
    for number, used in enumerate((3, 1, 2)):
        put(store, f"kv_{number:08}", conversation(number))
        use(store, f"kv_{number:08}", later - HOUR_MS + used)
    collector = Collector(store, Limits(budget_bytes=2 * 64))
    assert [(e.artifact, why) for e, why in collector.collect(later).evicted] == [
        ("kv_00000001", Why.OVER_BUDGET)
    ]


def test_loading_an_artifact_saves_it_from_eviction(store: BlockStore) -> None:
    later = now_ms() + HOUR_MS
    for number in range(2):
        put(store, f"kv_{number:08}", conversation(number))
        use(store, f"kv_{number:08}", 1_000 + number)
    store.use_manifest("acme", ArtifactId("kv_00000000"))
    collect_until_settled(Collector(store, Limits(budget_bytes=64)), later)
    assert handles(store) == {"kv_00000000"}


def test_artifacts_unused_for_too_long_go(store: BlockStore) -> None:
    later = now_ms() + HOUR_MS
    put(store, "kv_old00000", conversation(1))
    put(store, "kv_new00000", conversation(2))
    use(store, "kv_old00000", later - 2 * HOUR_MS)
    collect_until_settled(Collector(store, Limits(max_age_ms=2 * HOUR_MS)), later)
    assert handles(store) == {"kv_new00000"}


def test_evicted_blocks_stay_for_whoever_reads_them_just_now(store: BlockStore) -> None:
    later = now_ms() + HOUR_MS
    blocks = paths(store, put(store, "kv_00000000", conversation(1), expires_ms=later))
    collector = Collector(store, Limits())
    collector.collect(later)
    collector.collect(later + GRACE_MS - 1)
    assert all(path.exists() for path in blocks)
    collector.collect(later + GRACE_MS)
    assert not any(path.exists() for path in blocks)


def test_blocks_that_await_their_manifest_stay(store: BlockStore) -> None:
    """A writer found them standing just before; nobody named them then."""
    start = now_ms()
    manifest = put(store, "kv_00000000", conversation(1))
    store.manifest_path("acme", manifest.artifact).unlink()
    for path in paths(store, manifest):
        os.utime(path, (0, 0))
    collector = Collector(store, Limits())
    collector.collect(start)
    for block, path in zip(manifest.blocks, paths(store, manifest), strict=True):
        assert store.keep_block("acme", manifest.revision, block.key)
        assert path.stat().st_mtime * 1000 >= start - 1
        os.utime(path, ns=((start + 1) * 1_000_000, (start + 1) * 1_000_000))
    collector.collect(start + GRACE_MS)
    assert all(path.exists() for path in paths(store, manifest))
    collector.collect(start + 2 * GRACE_MS)
    assert not any(path.exists() for path in paths(store, manifest))


def test_a_manifest_of_a_format_from_the_future_keeps_its_blocks(store: BlockStore) -> None:
    manifest = put(store, "kv_00000000", conversation(1))
    path = store.manifest_path("acme", manifest.artifact)
    path.write_bytes(sealed(unsealed(path.read_bytes()).replace(b'"format":1', b'"format":2,"more":[]')))
    collect_until_settled(Collector(store, Limits()), now_ms() + HOUR_MS)
    assert all(path.exists() for path in paths(store, manifest))


def test_what_nobody_can_use_goes_after_a_while(store: BlockStore) -> None:
    later = now_ms() + 8 * 24 * HOUR_MS
    manifest = put(store, "kv_00000000", conversation(1))
    store.manifest_path("acme", manifest.artifact).write_bytes(b"")
    store.quarantine("acme", manifest.revision, manifest.blocks[0].key)
    (store.root / "tmp" / "half").write_bytes(b"half")
    collector = Collector(store, Limits())
    collector.collect(now_ms())
    contents = Catalog(store).look()
    assert len(contents.quarantined) == len(contents.unreadable) == len(contents.unfinished) == 1
    collector.collect(later)
    contents = Catalog(store).look()
    assert not contents.quarantined
    assert not contents.unreadable
    assert not contents.unfinished


def test_one_collector_at_a_time_works_on_a_store(store: BlockStore) -> None:
    put(store, "kv_00000000", conversation(1), expires_ms=1)
    with only_collector(store.root) as alone:
        assert alone
        run(store, Limits(), [None])
        assert handles(store) == {"kv_00000000"}
    run(store, Limits(), [None])
    assert handles(store) == set()


def test_a_store_that_does_not_answer_is_tried_again(
    store: BlockStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.root.parent.mkdir(exist_ok=True)
    store.root.write_text("a file where the store should be")

    def passes() -> Iterator[None]:
        yield None
        store.root.unlink()
        put(store, "kv_00000000", conversation(1), expires_ms=1)
        yield None

    with caplog.at_level(logging.WARNING):
        run(store, Limits(), passes())
    assert "has to wait for its collector" in caplog.text
    assert handles(store) == set()


@pytest.mark.parametrize("option", ["--budget-gib", "--max-age-h", "--every-s"])
def test_a_limit_must_be_above_zero(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--store", "kv", option, "0"])
    assert f"{option} 0.0 must be greater than 0" in capsys.readouterr().err


def test_the_process_collects_until_it_is_ended(store: BlockStore) -> None:
    put(store, "kv_00000000", conversation(1), expires_ms=1)
    arguments = ["--store", str(store.root), "--every-s", "0.05"]
    process = subprocess.Popen([sys.executable, "-m", "workers.kv_collector", *arguments])
    try:
        deadline = time.monotonic() + 20
        while handles(store) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert handles(store) == set()
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait()


def listed(name: int, used_ms: int, expires_ms: int, blocks: frozenset[int]) -> Listed:
    return Listed(
        path=Path(str(name)),
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
        blocks=tuple(ListedBlock(path=Path(str(b)), checksum="", size=b + 1) for b in sorted(blocks)),
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
