"""Blocks on their way between a KV cache and the store, without an engine around them."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from service.domain.artifact import ArtifactId, RefusalReason
from service.domain.evidence import Loaded, Published, Refusal
from service.domain.revision import Descriptor
from tests.domain.descriptors import V13, with_text
from tests.workers.kv_connector.paged_fakes import TENANT, Side, load_job, manifest_of, save, side
from workers.kv_connector.block_file import BLOCK_FORMAT, LENGTH_BYTES, SEAL_BYTES, BlockHeader

HANDLE = "kv_0123456789"


def loaded(reader: Side, handle: str = HANDLE) -> Loaded | Refusal:
    return reader.loader.load(load_job(manifest_of(reader, handle)), None)


def reason(outcome: Loaded | Refusal) -> RefusalReason:
    assert isinstance(outcome, Refusal)
    return outcome.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_what_is_loaded_is_what_was_saved_byte_for_byte(tmp_path: Path, dtype: torch.dtype) -> None:
    writer, reader = side(tmp_path, dtype=dtype), side(tmp_path, seed=1, dtype=dtype)
    published, outcome = save(writer, HANDLE), loaded(reader)
    assert isinstance(published, Published)
    assert isinstance(outcome, Loaded)
    for name, cache in reader.caches.items():
        for source, target in zip((5, 1, 3), (0, 7, 2), strict=True):
            theirs = writer.caches[name][source].contiguous().view(torch.uint8)
            assert torch.equal(cache[target].contiguous().view(torch.uint8), theirs)


def test_other_blocks_of_the_cache_are_left_alone(tmp_path: Path) -> None:
    save(side(tmp_path), HANDLE)
    reader, before = side(tmp_path, seed=1), side(tmp_path, seed=1)
    loaded(reader)
    for name, cache in reader.caches.items():
        for untouched in (1, 3, 4, 5, 6):
            assert torch.equal(cache[untouched], before.caches[name][untouched])


@pytest.mark.parametrize("own", [V13, with_text(chat_template="other")])
def test_the_reader_checks_the_revision_beside_the_bytes_again(tmp_path: Path, own: Descriptor) -> None:
    """As if the scheduler side had been wrong: its job names our own revision, the file another's."""
    writer, reader = side(tmp_path), side(tmp_path, own=own, seed=1)
    save(writer, HANDLE)
    manifest = dataclasses.replace(manifest_of(reader, HANDLE), descriptor=own)
    for block in manifest.blocks:
        path = reader.store.block_path(TENANT, own.digest, block.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(writer.store.block_path(TENANT, writer.paged.own.digest, block.key))
    before = {name: cache.clone() for name, cache in reader.caches.items()}
    assert reason(reader.loader.load(load_job(manifest), None)) is RefusalReason.REVISION_MISMATCH
    assert all(torch.equal(cache, before[name]) for name, cache in reader.caches.items())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tenant": "other"}, RefusalReason.TENANT_MISMATCH),
        ({"key": "0" * 64}, RefusalReason.BLOCK_UNREADABLE),
        ({"tensors": ()}, RefusalReason.BLOCK_UNREADABLE),
        ({"size": 1}, RefusalReason.BLOCK_UNREADABLE),
        ({"checksum": "0" * 64}, RefusalReason.CHECKSUM_MISMATCH),
    ],
)
def test_the_reader_checks_every_word_of_the_block_itself(
    tmp_path: Path, change: dict[str, object], expected: RefusalReason
) -> None:
    writer = side(tmp_path)
    save(writer, HANDLE)
    manifest = manifest_of(writer, HANDLE)
    path = writer.store.block_path(TENANT, manifest.revision, manifest.blocks[1].key)
    with path.open("rb") as file:
        header, payload = BlockHeader.read_from(file), file.read()
    path.write_bytes(dataclasses.replace(header, **change).to_bytes() + payload)  # type: ignore[arg-type]
    assert reason(loaded(side(tmp_path, seed=1))) is expected


@pytest.mark.parametrize("at", [-1, -20, -(2 * 2 * 4 * 6 * 4)], ids=["last byte", "amid", "first byte"])
def test_a_flipped_bit_is_refused_and_quarantined(tmp_path: Path, at: int) -> None:
    save(side(tmp_path), HANDLE)
    reader = side(tmp_path, seed=1)
    manifest = manifest_of(reader, HANDLE)
    path = reader.store.block_path(TENANT, manifest.revision, manifest.blocks[2].key)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert reason(loaded(reader)) is RefusalReason.CHECKSUM_MISMATCH
    assert not path.exists()
    assert [kept.name.split(".")[0] for kept in (tmp_path / "quarantine").iterdir()] == [path.name]


def test_a_whole_block_that_is_not_the_manifests_is_refused_but_not_quarantined(tmp_path: Path) -> None:
    save(side(tmp_path), HANDLE)
    for path in (tmp_path / "blocks").rglob("*"):
        if path.is_file():
            path.unlink()
    save(side(tmp_path, seed=2), "kv_rewritten")
    assert reason(loaded(side(tmp_path, seed=1))) is RefusalReason.CHECKSUM_MISMATCH
    assert not (tmp_path / "quarantine").exists()
    assert isinstance(loaded(side(tmp_path, seed=1), "kv_rewritten"), Loaded)


def test_the_lease_is_checked_before_the_read_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(side(tmp_path), HANDLE, lease_s=60)
    reader = side(tmp_path, seed=1)
    job = load_job(manifest_of(reader, HANDLE))
    clock = iter([job.expires_ms - 1, job.expires_ms])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 1_000_000)
    assert reason(reader.loader.load(job, None)) is RefusalReason.LEASE_EXPIRED
    assert next(clock, None) is None
    expired = dataclasses.replace(job, expires_ms=0)
    monkeypatch.setattr(time, "time_ns", time.monotonic_ns)
    assert reason(reader.loader.load(expired, None)) is RefusalReason.LEASE_EXPIRED


def test_two_writers_of_the_same_block_end_in_one_sound_block(tmp_path: Path) -> None:
    """Blocks that were decoded differ by rounding: the first stands, and both artifacts name it."""
    first, second = side(tmp_path), side(tmp_path, seed=1)
    assert isinstance(save(first, "kv_first0000"), Published)
    assert isinstance(save(second, "kv_second000"), Published)
    assert manifest_of(first, "kv_first0000").blocks == manifest_of(first, "kv_second000").blocks
    assert isinstance(loaded(side(tmp_path, seed=2), "kv_second000"), Loaded)


def test_a_writer_that_is_killed_amid_a_block_leaves_nothing_to_be_found(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from workers.kv_connector import local_store as store\n"
        "from tests.workers.kv_connector.paged_fakes import save, side\n"
        "written = store._write_whole\n"
        "def stop_amid(file, part):\n"
        "    written(file, memoryview(part)[: len(part) // 2])\n"
        "    os.write(1, b'amid\\n')\n"
        "    sys.stdin.read()\n"
        "store._write_whole = stop_amid\n"
        "save(side(Path(sys.argv[1])), 'kv_0123456789')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"amid\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not [path for path in (tmp_path / "blocks").rglob("*") if path.is_file()]
    assert not (tmp_path / "manifests").exists()
    store = side(tmp_path).store
    left = list((tmp_path / "tmp").iterdir())
    assert left
    for path in left:
        os.utime(path, (0, 0))
    store.sweep()
    assert not list((tmp_path / "tmp").iterdir())
    assert isinstance(save(side(tmp_path), HANDLE), Published)


def test_blocks_and_their_folder_are_on_the_disk_before_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    named_unsynced: list[str] = []
    fsync, link = os.fsync, os.link

    def note_sync(handle: int) -> None:
        fsync(handle)
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def note_link(source: Path, target: Path) -> None:
        if str(source) not in synced or (target.suffix == ".json" and blocks() - synced):
            named_unsynced.append(str(target))
        link(source, target)

    def blocks() -> set[str]:
        return {str(path.parent) for path in (tmp_path / "blocks").rglob("*") if path.is_file()}

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    save(side(tmp_path), HANDLE)
    manifest = side(tmp_path).store.manifest_path(TENANT, ArtifactId(HANDLE))
    assert named_unsynced == []
    assert str(manifest.parent) in synced


def test_a_load_counts_as_a_use_and_a_shared_block_as_kept(tmp_path: Path) -> None:
    """What the collector goes by."""
    writer = side(tmp_path)
    save(writer, HANDLE)
    manifest = manifest_of(writer, HANDLE)
    named = writer.store.manifest_path(TENANT, manifest.artifact)
    block = writer.store.block_path(TENANT, manifest.revision, manifest.blocks[0].key)
    os.utime(named, (0, 0))
    os.utime(block, (0, 0))
    loaded(side(tmp_path, seed=1))
    assert named.stat().st_mtime > 0
    assert block.stat().st_mtime == 0
    save(side(tmp_path), "kv_again00000")
    assert block.stat().st_mtime > 0


def test_blocks_without_a_manifest_are_not_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = side(tmp_path)
    monkeypatch.setattr(writer.saver._store, "put_manifest", _no_space)
    assert save(writer, HANDLE) == "the store refused: [Errno 28] No space left on device"
    with pytest.raises(FileNotFoundError):
        manifest_of(side(tmp_path), HANDLE)


def test_a_block_header_of_another_format_is_not_read(tmp_path: Path) -> None:
    save(side(tmp_path), HANDLE)
    path = next(path for path in (tmp_path / "blocks").rglob("*") if path.is_file())
    data = path.read_bytes()
    at = LENGTH_BYTES + SEAL_BYTES
    end = at + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.dumps(json.loads(data[at:end]) | {"format": BLOCK_FORMAT + 1}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + sha256(header).digest() + header + data[end:])
    assert reason(loaded(side(tmp_path, seed=1))) is RefusalReason.BLOCK_UNREADABLE


def _no_space(_manifest: object) -> bool:
    raise OSError(28, os.strerror(28))
