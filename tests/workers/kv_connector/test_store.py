"""What every KV store keeps to, in a folder and in a bucket."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from service.domain.artifact import ArtifactId, BootId, MadeBy, Manifest, RefusalReason, Refused
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import RevisionDigest
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.stored import TENSORS, conversation, names, put
from tests.workers.kv_connector.stores import Hands
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable, checksum
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.offers import read_offer
from workers.kv_connector.patience import Patience
from workers.kv_connector.store import BlockStore, block_name, manifest_name
from workers.kv_connector.store_address import full_address, open_store

KEY = "ab" * 32
HANDLE = ArtifactId("kv_0123456789")
TRICKS = [
    "../../etc/passwd",
    "/etc/passwd",
    "kv_../../secret",
    "kv_12345678/../x",
    "kv_12345678\0",
    "kv_12345678\n",
    "kv_" + "a" * 10_240,
    "kv_ABCDEFGH",
    "kv_%2e%2e%2f%2e%2e",
    "",
]


def header(payload: bytes, boot: str = "boot_a") -> BlockHeader:
    return BlockHeader(
        key=KEY,
        tenant="acme",
        revision=V12.digest,
        producer=BootId(boot),
        made_by=MadeBy.DECODE,
        tensors=TENSORS,
        checksum=checksum(payload).hexdigest(),
        size=len(payload),
    )


def read(store: BlockStore, size: int) -> tuple[BlockHeader, bytes]:
    buffer = bytearray(size)
    found, digest = store.read_block("acme", V12.digest, KEY, memoryview(buffer))
    assert digest == checksum(bytes(buffer)).hexdigest()
    return found, bytes(buffer)


def test_a_block_is_read_as_it_was_put_and_never_overwritten(block_store: BlockStore) -> None:
    first, second = b"first" * 100, b"other" * 100
    assert block_store.put_block(header(first), memoryview(first))
    assert not block_store.put_block(header(second), memoryview(second))
    assert read(block_store, len(first)) == (header(first), first)


@pytest.mark.parametrize("by", [-1, 1, 2_000_000])
def test_a_block_of_another_length_fits_no_buffer(block_store: BlockStore, by: int) -> None:
    payload = b"x" * 3_000_000
    block_store.put_block(header(payload), memoryview(payload))
    with pytest.raises(BlockUnreadable):
        read(block_store, len(payload) + by)


@pytest.mark.parametrize("keep", [0, 7, 8, 39, 40, 100, -1])
def test_a_block_that_was_cut_is_unreadable(block_store: BlockStore, hands: Hands, keep: int) -> None:
    payload = b"x" * 500
    block_store.put_block(header(payload), memoryview(payload))
    name = block_name("acme", V12.digest, KEY)
    hands.write(name, hands.read(name)[:keep])
    with pytest.raises(BlockUnreadable):
        read(block_store, len(payload))


def test_what_is_not_there_is_not_found(block_store: BlockStore) -> None:
    with pytest.raises(FileNotFoundError):
        read(block_store, 10)
    with pytest.raises(FileNotFoundError):
        block_store.read_manifest("acme", HANDLE)
    assert not block_store.keep_block("acme", V12.digest, KEY)
    assert block_store.read_descriptor(V12.digest) is None
    block_store.quarantine("acme", V12.digest, KEY)
    block_store.use_manifest("acme", HANDLE)
    block_store.sweep()
    assert not list(block_store.list("quarantine"))


def test_many_writers_of_one_block_leave_one_whole(block_store: BlockStore) -> None:
    payloads = [bytes([number]) * 100_000 for number in range(8)]
    start = threading.Barrier(len(payloads))

    def write(number: int) -> bool:
        start.wait()
        return block_store.put_block(header(payloads[number]), memoryview(payloads[number]))

    with ThreadPoolExecutor(len(payloads)) as writers:
        written = list(writers.map(write, range(len(payloads))))
    assert written.count(True) == 1
    assert read(block_store, 100_000)[1] == payloads[written.index(True)]


def test_a_handle_is_given_once(block_store: BlockStore) -> None:
    first = put(block_store, HANDLE, conversation(1))
    assert not block_store.put_manifest(replace(first, attempt="another"))
    assert Manifest.from_bytes(block_store.read_manifest("acme", HANDLE)) == first


def test_a_damaged_manifest_is_none(block_store: BlockStore, hands: Hands) -> None:
    put(block_store, HANDLE, conversation(1))
    name = manifest_name("acme", HANDLE)
    hands.write(name, hands.read(name).replace(b"acme", b"evil"))
    with pytest.raises(InvalidManifest):
        block_store.read_manifest("acme", HANDLE)


def test_a_manifest_that_is_far_too_long_is_not_even_taken_in(block_store: BlockStore, hands: Hands) -> None:
    put(block_store, HANDLE, conversation(1))
    hands.write(manifest_name("acme", HANDLE), b"0" * ((1 << 24) + 1))
    with pytest.raises(InvalidManifest, match="longer than"):
        block_store.read_manifest("acme", HANDLE)


def test_descriptors_of_others_are_found_by_their_digest(block_store: BlockStore, hands: Hands) -> None:
    block_store.put_descriptor(V12)
    block_store.put_descriptor(V12)
    assert block_store.read_descriptor(V12.digest) == V12
    assert block_store.read_descriptor(V13.digest) is None
    assert block_store.read_descriptor("../../etc/passwd") is None
    (found,) = block_store.list("revisions")
    hands.write(found.name, json.dumps({"kv": 1}).encode())
    assert block_store.read_descriptor(V12.digest) is None


def test_a_quarantined_block_makes_room_for_its_repair(block_store: BlockStore) -> None:
    bad, good = b"bad" * 10, b"good" * 10
    block_store.put_block(header(bad), memoryview(bad))
    block_store.quarantine("acme", V12.digest, KEY)
    assert block_store.put_block(header(good), memoryview(good))
    (kept,) = block_store.list("quarantine")
    assert kept.name.startswith(f"quarantine/{KEY}.")


def test_tenants_and_revisions_lie_apart(block_store: BlockStore) -> None:
    put(block_store, HANDLE, conversation(1))
    with pytest.raises(FileNotFoundError):
        block_store.read_manifest("other", HANDLE)
    manifest = Manifest.from_bytes(block_store.read_manifest("acme", HANDLE))
    buffer = memoryview(bytearray(manifest.blocks[0].size))
    with pytest.raises(FileNotFoundError):
        block_store.read_block("other", V12.digest, manifest.blocks[0].key, buffer)
    with pytest.raises(FileNotFoundError):
        block_store.read_block("acme", V13.digest, manifest.blocks[0].key, buffer)


def test_all_names_of_what_lies_there_are_listed_as_they_are_asked_for(block_store: BlockStore) -> None:
    manifest = put(block_store, HANDLE, conversation(1))
    assert [found.name for found in block_store.list("manifests")] == [manifest_name("acme", HANDLE)]
    assert [found.name for found in block_store.list("blocks")] == names(manifest)
    assert not list(block_store.list("manifest"))


@pytest.mark.parametrize("handle", TRICKS)
def test_no_handle_leads_out_of_the_store(block_store: BlockStore, tmp_path: Path, handle: str) -> None:
    """Whoever forgot to check it before."""
    trick = ArtifactId(handle)
    with pytest.raises(InvalidInput):
        block_store.read_manifest("acme", trick)
    with pytest.raises(InvalidInput):
        block_store.use_manifest("acme", trick)
    manifest = put(block_store, HANDLE, conversation(1))
    with pytest.raises(InvalidInput):
        block_store.put_manifest(replace(manifest, artifact=trick))
    assert len(list(block_store.list("manifests"))) == 1


@pytest.mark.parametrize("trick", ["../" * 8 + "etc/passwd", "/etc/passwd", "\0", "a" * 10_240, "AB" * 32])
def test_no_key_or_digest_leads_out_of_the_store(block_store: BlockStore, trick: str) -> None:
    buffer = memoryview(bytearray(10))
    with pytest.raises(InvalidInput):
        block_store.read_block("acme", V12.digest, trick, buffer)
    with pytest.raises(InvalidInput):
        block_store.read_block("acme", RevisionDigest(trick), KEY, buffer)
    with pytest.raises(InvalidInput):
        block_store.keep_block("acme", RevisionDigest(trick), KEY)


@pytest.mark.parametrize("tenant", ["../../etc", "/", "\0", "a" * 10_240, "\udcff", ""])
def test_no_tenants_name_is_part_of_a_path(block_store: BlockStore, tenant: str) -> None:
    name = manifest_name(tenant, HANDLE)
    assert (
        name == f"manifests/{sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}/{HANDLE}.json"
    )
    with pytest.raises(FileNotFoundError):
        block_store.read_manifest(tenant, HANDLE)


def test_a_store_that_hangs_keeps_nobody_waiting(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs lets nobody go who asked it."""
    put(block_store, HANDLE, conversation(1))
    goes_on = threading.Event()
    block_store._patience = Patience(wait_s=0.05, pause_s=0)
    answers = block_store._read
    monkeypatch.setattr(
        block_store, "_read", lambda *given, **more: goes_on.wait(60) and answers(*given, **more)
    )
    try:
        for _ in range(3):
            refused = read_offer(block_store, "acme", HANDLE)
            assert isinstance(refused, Refused)
            assert refused.reason is RefusalReason.STORE_UNREACHABLE
            assert block_store.read_descriptor(V12.digest) is None
        late = block_store._patience._late
    finally:
        goes_on.set()
    assert late is not None
    late.join()
    block_store._patience = Patience(wait_s=10, pause_s=0)
    assert isinstance(read_offer(block_store, "acme", HANDLE), Manifest)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "is no KV store"),
        ("gs://bucket/kv", "is no KV store: give a folder, or s3://BUCKET/PREFIX"),
        ("file:///kv", "is no KV store"),
        ("kv\0", "is no KV store"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://B", "names a bucket that cannot be: a name has 3 to 63"),
        ("s3://kv/prefix", "names a bucket that cannot be"),
        ("s3://bucket/../other", "has a prefix of other than"),
        ("s3://bucket/a//b", "has a prefix of other than"),
        ("s3://bucket/a?b=c", "has a prefix of other than"),
    ],
)
def test_an_address_must_be_one(address: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        open_store(address)
    assert "\n" not in str(caught.value)


def test_an_address_can_be_handed_to_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert full_address("kv") == str(tmp_path / "kv")
    assert full_address("s3://bucket/a/b/") == "s3://bucket/a/b"
    store = open_store("kv")
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path / "kv"
