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

from service.domain.artifact import ArtifactId, BootId, RefusalReason
from service.domain.evidence import Loaded, Published, Refusal
from service.domain.revision import Descriptor
from tests.domain.descriptors import V13, with_kv, with_text
from tests.workers.kv_connector.paged_fakes import TENANT, Side, load_job, manifest_of, save, side
from tests.workers.kv_connector.stores import Hands
from workers.kv_connector.block_file import BLOCK_FORMAT, LENGTH_BYTES, SEAL_BYTES, BlockHeader
from workers.kv_connector.jobs import WEIGHTS_CHANGED
from workers.kv_connector.loading import Loader
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.saving import Saver
from workers.kv_connector.store import (
    LONGEST_TRANSFER_S,
    BlockStore,
    block_name,
    manifest_name,
    own_name,
)

HANDLE = "kv_0123456789"


def loaded(reader: Side, handle: str = HANDLE) -> Loaded | Refusal:
    return reader.loader.load(load_job(manifest_of(reader, handle)), None)


def reason(outcome: Loaded | Refusal) -> RefusalReason:
    assert isinstance(outcome, Refusal)
    return outcome.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_what_is_loaded_is_what_was_saved_byte_for_byte(block_store: BlockStore, dtype: torch.dtype) -> None:
    writer, reader = side(block_store, dtype=dtype), side(block_store, seed=1, dtype=dtype)
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


@pytest.mark.parametrize(
    "own",
    [
        V13,
        with_kv(environment={"VLLM_X": "1"}),
        with_kv(kv_dtype="float16"),
        with_kv(kv_layout={"name": "BLNHC"}),
    ],
    ids=["weights", "toggle", "dtype", "layout"],
)
def test_the_reader_opens_no_block_for_a_job_of_another_revision(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch, own: Descriptor
) -> None:
    """As if the scheduler side had not looked: everything in the store is as it was written, and another's."""
    writer = side(block_store)
    save(writer, HANDLE)
    job = load_job(manifest_of(writer, HANDLE))
    assert isinstance(side(block_store, seed=1).loader.load(job, None), Loaded)
    monkeypatch.setattr(type(block_store), "read_block", lambda *_: pytest.fail("read"))
    reader = side(block_store, own=own, seed=1)
    assert reason(reader.loader.load(job, None)) is RefusalReason.REVISION_MISMATCH


@pytest.mark.parametrize("own", [V13, with_text(chat_template="other")])
def test_the_reader_checks_the_revision_beside_the_bytes_again(
    block_store: BlockStore, hands: Hands, own: Descriptor
) -> None:
    """As if the scheduler side had been wrong: its job names our own revision, the block another's."""
    writer, reader = side(block_store), side(block_store, own=own, seed=1)
    save(writer, HANDLE)
    manifest = dataclasses.replace(manifest_of(reader, HANDLE), descriptor=own)
    for block in manifest.blocks:
        theirs = hands.read(block_name(TENANT, writer.paged.own.digest, block.key))
        hands.write(block_name(TENANT, own.digest, block.key), theirs)
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
    block_store: BlockStore, hands: Hands, change: dict[str, object], expected: RefusalReason
) -> None:
    writer = side(block_store)
    save(writer, HANDLE)
    manifest = manifest_of(writer, HANDLE)
    name = block_name(TENANT, manifest.revision, manifest.blocks[1].key)
    with block_store.open(name) as file:
        header, payload = BlockHeader.read_from(file), file.read()
    hands.write(name, dataclasses.replace(header, **change).to_bytes() + payload)  # type: ignore[arg-type]
    assert reason(loaded(side(block_store, seed=1))) is expected


@pytest.mark.parametrize("at", [-1, -20, -(2 * 2 * 4 * 6 * 4)], ids=["last byte", "amid", "first byte"])
def test_a_flipped_bit_is_refused_and_quarantined(block_store: BlockStore, hands: Hands, at: int) -> None:
    save(side(block_store), HANDLE)
    reader = side(block_store, seed=1)
    manifest = manifest_of(reader, HANDLE)
    name = block_name(TENANT, manifest.revision, manifest.blocks[2].key)
    data = bytearray(hands.read(name))
    data[at] ^= 1
    hands.write(name, bytes(data))
    assert reason(loaded(reader)) is RefusalReason.CHECKSUM_MISMATCH
    assert not hands.exists(name)
    assert [own_name(kept.name).split(".")[0] for kept in block_store.list("quarantine")] == [own_name(name)]


def test_a_whole_block_that_is_not_the_manifests_is_refused_but_not_quarantined(
    block_store: BlockStore,
) -> None:
    save(side(block_store), HANDLE)
    for found in list(block_store.list("blocks")):
        block_store.remove(found.name)
    save(side(block_store, seed=2), "kv_rewritten")
    assert reason(loaded(side(block_store, seed=1))) is RefusalReason.CHECKSUM_MISMATCH
    assert not list(block_store.list("quarantine"))
    assert isinstance(loaded(side(block_store, seed=1), "kv_rewritten"), Loaded)


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


def test_two_writers_of_the_same_block_end_in_one_sound_block(block_store: BlockStore) -> None:
    """Blocks that were decoded differ by rounding: the first stands, and both artifacts name it."""
    first, second = side(block_store), side(block_store, seed=1)
    assert isinstance(save(first, "kv_first0000"), Published)
    assert isinstance(save(second, "kv_second000"), Published)
    assert manifest_of(first, "kv_first0000").blocks == manifest_of(first, "kv_second000").blocks
    assert isinstance(loaded(side(block_store, seed=2), "kv_second000"), Loaded)


def test_a_damaged_block_is_put_aside_and_written_anew(block_store: BlockStore, hands: Hands) -> None:
    save(side(block_store), HANDLE)
    manifest = manifest_of(side(block_store), HANDLE)
    name = block_name(TENANT, manifest.revision, manifest.blocks[0].key)
    hands.write(name, hands.read(name)[:-1])
    assert isinstance(save(side(block_store), "kv_again00000"), Published)
    assert isinstance(loaded(side(block_store, seed=1), "kv_again00000"), Loaded)
    assert len(list(block_store.list("quarantine"))) == 1


def test_a_load_that_takes_too_long_is_given_up(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the collector could take blocks from under it: it leaves them alone for little longer."""
    save(side(block_store), HANDLE)
    reader = side(block_store, seed=1)
    job = load_job(manifest_of(reader, HANDLE))
    pass_time_after(reader.store, "read_block", LONGEST_TRANSFER_S + 1, monkeypatch)
    outcome = reader.loader.load(job, None)
    assert reason(outcome) is RefusalReason.STORE_UNREACHABLE
    assert "it took longer than 90 s" in str(outcome)


def test_a_publication_that_takes_too_long_is_given_up(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = side(block_store)
    pass_time_after(writer.store, "put_block", LONGEST_TRANSFER_S + 1, monkeypatch)
    assert save(writer, HANDLE) == "writing its blocks took longer than 90 s"
    assert not list(block_store.list("manifests"))


def test_the_collectors_grace_outlasts_the_longest_transfer(block_store: BlockStore) -> None:
    assert block_store.grace_ms >= (LONGEST_TRANSFER_S + 30) * 1000


def pass_time_after(store: BlockStore, method: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of its blocks."""
    works, monotonic, passed = getattr(store, method), time.monotonic, [0.0]

    def works_slowly(*given: object) -> object:
        passed[0] += seconds
        return works(*given)

    monkeypatch.setattr(store, method, works_slowly)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed[0])


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
    manifest = LocalStore(tmp_path).manifest_path(TENANT, ArtifactId(HANDLE))
    assert named_unsynced == []
    assert str(manifest.parent) in synced


def test_a_load_counts_as_a_use_and_a_shared_block_as_kept(block_store: BlockStore, hands: Hands) -> None:
    """What the collector goes by."""
    save(side(block_store), HANDLE)
    manifest = manifest_of(side(block_store), HANDLE)
    named = manifest_name(TENANT, manifest.artifact)
    block = block_name(TENANT, manifest.revision, manifest.blocks[0].key)
    hands.age(named, 0)
    hands.age(block, 0)
    loaded(side(block_store, seed=1))
    hands.await_use(named)
    assert hands.changed_ms(named) > 0
    assert hands.changed_ms(block) == 0
    save(side(block_store), "kv_again00000")
    assert hands.changed_ms(block) > 0


def test_blocks_without_a_manifest_are_not_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = side(tmp_path)
    monkeypatch.setattr(writer.saver._store, "put_manifest", _no_space)
    assert save(writer, HANDLE) == "the store refused: [Errno 28] No space left on device"
    with pytest.raises(FileNotFoundError):
        manifest_of(side(tmp_path), HANDLE)


@pytest.mark.parametrize("format_", [BLOCK_FORMAT + 1, float(BLOCK_FORMAT), True])
def test_a_block_header_of_another_format_is_not_read(tmp_path: Path, format_: object) -> None:
    save(side(tmp_path), HANDLE)
    path = next(path for path in (tmp_path / "blocks").rglob("*") if path.is_file())
    data = path.read_bytes()
    at = LENGTH_BYTES + SEAL_BYTES
    end = at + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.dumps(json.loads(data[at:end]) | {"format": format_}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + sha256(header).digest() + header + data[end:])
    assert reason(loaded(side(tmp_path, seed=1))) is RefusalReason.BLOCK_UNREADABLE


def _no_space(_manifest: object) -> bool:
    raise OSError(28, os.strerror(28))


def test_weights_that_changed_in_place_refuse_a_load_also_after_the_last_byte(tmp_path: Path) -> None:
    save(side(tmp_path), HANDLE)
    reader = side(tmp_path, seed=1)
    for seen in ([1], [0, 1]):
        changes = iter(seen)
        loader = Loader(reader.store, reader.paged, lambda changes=changes: next(changes))  # type: ignore[misc]
        assert (
            reason(loader.load(load_job(manifest_of(reader, HANDLE)), None)) is RefusalReason.REVISION_UNKNOWN
        )
        assert next(changes, None) is None


def test_weights_that_changed_in_place_publish_nothing(tmp_path: Path) -> None:
    writer = side(tmp_path)
    changed = dataclasses.replace(writer, saver=Saver(writer.store, writer.paged, BootId("boot"), lambda: 1))
    assert save(changed, HANDLE) == WEIGHTS_CHANGED
    with pytest.raises(FileNotFoundError):
        manifest_of(writer, HANDLE)
