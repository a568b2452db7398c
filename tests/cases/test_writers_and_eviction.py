"""F3 and F7 of the known failures of KV stores: writers that die or meet, and conversations whose KV is evicted under them."""

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from service.domain.artifact import RefusalReason
from service.domain.evidence import Loaded, Published
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.paged_fakes import Side, load_job, manifest_of, save, side
from tests.workers.kv_connector.prompts import prompt
from workers.kv_collector import Collector, Limits
from workers.kv_connector import local_store
from workers.kv_connector.block_file import BlockHeader, checksum
from workers.kv_connector.catalog import Catalog
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import GRACE_MS
from workers.kv_upkeep import verify

HANDLE = "kv_killed0000"
AGAIN = "kv_again00000"
ROOT = Path(__file__).parents[2]

WRITER = """
import os, signal, sys
from pathlib import Path
from tests.workers.kv_connector.paged_fakes import save, side
from workers.kv_connector import local_store as store

def die():
    os.kill(os.getpid(), signal.SIGKILL)

write, link, sync = store._write_whole, os.link, store._sync_folder

def is_manifest(part):
    return b'"token_count"' in bytes(part)

def amid_payload(file, part):
    if len(part) < 2000 and b'checksum' not in bytes(part):
        write(file, memoryview(part)[: len(part) // 2]); die()
    write(file, part)

def amid_manifest(file, part):
    if is_manifest(part):
        write(file, memoryview(part)[: len(part) // 2]); die()
    write(file, part)

def before_naming(suffix):
    def linked(source, target):
        if Path(target).suffix == suffix:
            die()
        link(source, target)
    return linked

def after_naming_a_block(source, target):
    link(source, target)
    die()

match sys.argv[2]:
    case 'amid the payload': store._write_whole = amid_payload
    case 'after the payload': os.link = before_naming('')
    case 'after a block': os.link = after_naming_a_block
    case 'after all blocks': store._sync_folder = lambda folder: die()
    case 'amid the manifest': store._write_whole = amid_manifest
    case 'after the manifest, before its name': os.link = before_naming('.json')
save(side(Path(sys.argv[1])), sys.argv[3])
print('alive')
"""


def write_in_another_process(root: Path, dies: str, handle: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), dies, handle],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
    )


def assert_loads_what_was_saved(root: Path, handle: str, writer: Side) -> None:
    reader = side(root, seed=7)
    outcome = reader.loader.load(load_job(manifest_of(reader, handle)), None)
    assert isinstance(outcome, Loaded)
    for name, cache in reader.caches.items():
        assert torch.equal(cache[0], writer.caches[name][5])


@pytest.mark.parametrize(
    "dies",
    [
        "amid the payload",
        "after the payload",
        "after a block",
        "after all blocks",
        "amid the manifest",
        "after the manifest, before its name",
    ],
)
def test_f3_a_writer_that_is_killed_leaves_nothing_that_a_lookup_returns(tmp_path: Path, dies: str) -> None:
    process = write_in_another_process(tmp_path, dies, HANDLE)
    out, error = process.communicate(timeout=60)
    assert process.returncode == -9, error.decode()
    assert out == b""
    store = LocalStore(tmp_path)
    contents = Catalog(store).look()
    assert contents.artifacts == ()
    assert contents.unreadable == ()
    with pytest.raises(FileNotFoundError):
        manifest_of(side(tmp_path), HANDLE)
    writer = side(tmp_path)
    assert isinstance(save(writer, AGAIN, lease_s=86_400), Published)
    assert verify(store, Catalog(store).look().artifacts) == []
    assert_loads_what_was_saved(tmp_path, AGAIN, writer)
    # What it left goes with time, and with it nothing that is needed.
    collector = Collector(store, Limits())
    later = time.time_ns() // 1_000_000 + 50_000
    collector.collect(later)
    collector.collect(later + GRACE_MS)
    contents = Catalog(store).look()
    assert contents.orphans() == []
    assert verify(store, contents.artifacts) == []
    assert len(contents.artifacts) == 1


class Killed(BaseException):
    """Nothing runs after it."""


def kill_after(size: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets a writer of this process write `size` bytes in all; gives what it wanted to write, part by part."""
    wanted: list[int] = []
    lock, write = threading.Lock(), local_store._write_whole

    def written(file: object, part: bytes | memoryview) -> None:
        with lock:
            left = size - sum(wanted)
            wanted.append(len(part))
            write(file, memoryview(part)[: max(left, 0)])
            if left < len(part):
                raise Killed

    monkeypatch.setattr(local_store, "_write_whole", written)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    return wanted


def test_f3_a_writer_that_dies_at_any_byte_leaves_nothing_that_a_lookup_returns(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        written = kill_after(1 << 30, patched)
        assert isinstance(save(side(tmp_path / "whole"), HANDLE), Published)
    whole = sum(written)
    for size in range(0, whole, 67):
        root = tmp_path / str(size)
        with pytest.MonkeyPatch.context() as patched:
            kill_after(size, patched)
            with pytest.raises(Killed):
                save(side(root), HANDLE)
        contents = Catalog(LocalStore(root)).look()
        assert (contents.artifacts, contents.unreadable) == ((), ()), size
        for found in contents.blocks.values():
            with (root / found.name).open("rb") as file:
                header = BlockHeader.read_from(file)
                assert checksum(file.read()).hexdigest() == header.checksum, size


def test_f3_two_writers_at_once_end_in_one_sound_copy_that_both_name(tmp_path: Path) -> None:
    handles = [f"kv_writer{number:04}" for number in range(4)]
    processes = [write_in_another_process(tmp_path, "never", handle) for handle in handles]
    for process in processes:
        assert process.communicate(timeout=60)[0] == b"alive\n"
    store = LocalStore(tmp_path)
    contents = Catalog(store).look()
    assert {listed.artifact for listed in contents.artifacts} == set(handles)
    assert len(contents.blocks) == 3
    assert verify(store, contents.artifacts) == []
    for handle in handles:
        assert_loads_what_was_saved(tmp_path, handle, side(tmp_path))


def test_f3_a_writer_that_dies_beside_another_takes_nothing_from_it(tmp_path: Path) -> None:
    dying = write_in_another_process(tmp_path, "after a block", HANDLE)
    living = write_in_another_process(tmp_path, "never", AGAIN)
    dying.communicate(timeout=60)
    assert living.communicate(timeout=60)[0] == b"alive\n"
    assert_loads_what_was_saved(tmp_path, AGAIN, side(tmp_path))


def test_f6_an_artifact_that_expires_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's own clock, asked before the bytes are read and after them."""
    save(side(tmp_path), HANDLE, lease_s=60)
    reader = side(tmp_path, seed=7)
    job = load_job(manifest_of(reader, HANDLE))
    clock = iter([job.expires_ms - 1, job.expires_ms])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 1_000_000)
    outcome = reader.loader.load(job, None)
    assert not isinstance(outcome, Loaded)
    assert outcome.reason is RefusalReason.LEASE_EXPIRED
    assert next(clock, None) is None


CONVERSATIONS = 10


def conversation(number: int) -> list[int]:
    """A beginning that all share, a needle that none shares, and much that looks alike."""
    return prompt("shared", 96) + prompt(f"needle {number}", 8) + prompt("hay", 90)


@pytest.fixture(scope="module")
def evicting(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealEngine]:
    """With a store of its own: nobody else's KV is evicted."""
    engine = engine_hall.start(tiny_v12, tmp_path_factory.mktemp("evicting"))
    yield engine
    engine_hall.stop(engine)


def publish(engine: RealEngine, number: int) -> str:
    handle = new_handle()
    reply = engine.generate(conversation(number), publish=handle, max_tokens=1, lease_s=86_400)
    assert reply.known.published is not None
    return handle


@pytest.mark.engine
def test_f7_each_conversation_finds_its_own_needle_after_eviction(evicting: RealEngine) -> None:
    cold = [evicting.cold(conversation(number)) for number in range(CONVERSATIONS)]
    assert len({tuple(reply.tokens) for reply in cold}) == CONVERSATIONS
    handles = [publish(evicting, number) for number in range(CONVERSATIONS)]
    store = LocalStore(evicting.store)
    block = next(iter(Catalog(store).look().artifacts[0].blocks)).size
    # The shared beginning and room for three needles and their hay.
    collector = Collector(store, Limits(budget_bytes=(3 + 3 * 3) * block))
    later = time.time_ns() // 1_000_000 + 2 * GRACE_MS
    collector.collect(later)
    collector.collect(later + GRACE_MS)
    reasons = []
    for number, handle in enumerate(handles):
        reply = evicting.cold(conversation(number), offer=handle)
        assert (reply.tokens, reply.logprobs) == (cold[number].tokens, cold[number].logprobs)
        reasons.append(reply.known.refusal.reason if reply.known.refusal else None)
    assert reasons == [RefusalReason.MANIFEST_MISSING] * (CONVERSATIONS - 3) + [None] * 3


@pytest.mark.engine
def test_f7_conversations_whose_kv_is_torn_away_meanwhile_still_find_their_needle(
    evicting: RealEngine,
) -> None:
    """Far harsher than the collector: blocks go at once, also from under a load."""
    cold = [evicting.cold(conversation(number)) for number in range(CONVERSATIONS)]
    over = threading.Event()

    def tear() -> None:
        while not over.wait(0.01):
            store = LocalStore(evicting.store)
            for name in sorted(Catalog(store).look().blocks, key=lambda _: secrets.token_bytes(4))[:2]:
                store.remove(name)

    tearing = threading.Thread(target=tear)
    tearing.start()
    refused = 0
    try:
        for number in range(3 * CONVERSATIONS):
            number %= CONVERSATIONS  # noqa: PLW2901
            handle = publish(evicting, number)
            reply = evicting.cold(conversation(number), offer=handle)
            if reply.status != 200:
                assert reply.known.refusal is not None
                assert reply.known.refusal.reason is RefusalReason.BLOCK_MISSING
                refused += 1
                reply = evicting.cold(conversation(number))
            assert (reply.tokens, reply.logprobs) == (cold[number].tokens, cold[number].logprobs)
    finally:
        over.set()
        tearing.join()
    assert refused > 0
    assert evicting.is_healthy()
