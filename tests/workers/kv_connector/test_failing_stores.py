"""Stores that are full, read-only or gone: KV is not carried, a reason says why, and the engine stays up."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.artifact import ArtifactId, RefusalReason
from service.domain.evidence import Loaded, Published
from tests.engines.real import EngineHall, RealEngine, Reply, new_handle
from tests.workers.kv_connector.paged_fakes import TENANT, load_job, manifest_of, save, side
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.block_file import BlockHeader
from workers.kv_connector.catalog import Catalog
from workers.kv_connector.local_store import LocalStore

HANDLE = "kv_0123456789"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or not mounted(disk, "size=64k"):
        pytest.skip("mounting a small tmpfs takes root and the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def mounted(disk: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    filler.write_bytes(b"\0" * shutil.disk_usage(disk).free)
    assert shutil.disk_usage(disk).free == 0
    return filler


def test_a_full_disk_publishes_nothing_and_a_freed_one_does(small_disk: Path) -> None:
    writer = side(small_disk)
    filler = fill(small_disk)
    assert save(writer, HANDLE) == "the store refused: [Errno 28] No space left on device"
    filler.unlink()
    assert not [path for path in small_disk.rglob("*") if path.is_file()]
    assert isinstance(save(writer, HANDLE), Published)


def test_a_disk_that_fills_up_amid_the_blocks_leaves_no_artifact(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = side(small_disk)
    store = writer.store
    put = store.put_block
    puts: list[BlockHeader] = []

    def fills_up(header: BlockHeader, payload: memoryview) -> bool:
        puts.append(header)
        if len(puts) == 2:
            fill(small_disk)
        return put(header, payload)

    monkeypatch.setattr(store, "put_block", fills_up)
    assert str(save(writer, HANDLE)).startswith("the store refused: [Errno 28]")
    assert Catalog(store).look().artifacts == ()


def test_a_read_only_store_is_still_read(small_disk: Path) -> None:
    save(side(small_disk), HANDLE)
    remount(small_disk, "ro")
    reader = side(small_disk, seed=1)
    assert isinstance(reader.loader.load(load_job(manifest_of(reader, HANDLE)), None), Loaded)
    assert "Read-only file system" in str(save(reader, "kv_second0000"))


def test_damage_in_a_read_only_store_is_refused_where_it_lies(small_disk: Path) -> None:
    writer = side(small_disk)
    save(writer, HANDLE)
    manifest = manifest_of(writer, HANDLE)
    path = LocalStore(small_disk).block_path(TENANT, manifest.revision, manifest.blocks[0].key)
    path.write_bytes(path.read_bytes()[:-1])
    remount(small_disk, "ro")
    outcome = side(small_disk, seed=1).loader.load(load_job(manifest), None)
    assert not isinstance(outcome, Loaded)
    assert outcome.reason is RefusalReason.BLOCK_UNREADABLE
    assert path.exists()


@pytest.mark.parametrize("there", ["a file", "nothing"])
def test_a_store_that_is_not_there_supplies_nothing(tmp_path: Path, there: str) -> None:
    save(side(tmp_path / "kv"), HANDLE)
    job = load_job(manifest_of(side(tmp_path / "kv"), HANDLE))
    (tmp_path / "kv").rename(tmp_path / "away")
    if there == "a file":
        (tmp_path / "kv").write_text("")
    outcome = side(tmp_path / "kv").loader.load(job, None)
    assert not isinstance(outcome, Loaded)
    expected = RefusalReason.STORE_UNREACHABLE if there == "a file" else RefusalReason.BLOCK_MISSING
    assert outcome.reason is expected


@pytest.mark.engine
def test_an_engine_lives_through_a_store_that_fills_up_turns_read_only_and_goes(
    engine_hall: EngineHall, tiny_v12: Path, small_disk: Path
) -> None:
    engine = engine_hall.start(tiny_v12, small_disk)
    ids = prompt("failing store")
    cold = engine.cold(ids)

    def same(reply: Reply) -> Reply:
        assert (reply.status, reply.tokens, reply.logprobs) == (200, cold.tokens, cold.logprobs)
        assert engine.is_healthy()
        return reply

    full = same(engine.cold(ids, publish=new_handle())).known
    assert full.publish_failure == "the store refused: [Errno 28] No space left on device"
    remount(small_disk, "size=8m")
    handle = published(engine, ids)
    remount(small_disk, "ro")
    read_only = same(engine.cold(ids, offer=handle, publish=new_handle())).known
    assert read_only.loaded is not None
    remount(small_disk, "rw")
    path = LocalStore(small_disk).manifest_path("tenant_a", ArtifactId(handle))
    path.parent.rename(small_disk / "away")
    path.parent.write_text("a file where a folder was")
    gone = same(engine.cold(ids, offer=handle)).known
    assert gone.refusal is not None
    assert gone.refusal.reason is RefusalReason.STORE_UNREACHABLE
    engine_hall.stop(engine)


def published(engine: RealEngine, ids: list[int]) -> str:
    handle = new_handle()
    assert engine.cold(ids, publish=handle, max_tokens=1).known.published is not None
    return handle
