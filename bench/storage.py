"""Loading, saving and hashing without an engine, each against the plain work on the same bytes in the same run."""

import os
import secrets
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

import torch

from service.domain.artifact import ArtifactId, BootId, MadeBy, Manifest, Tensor, block_keys
from service.domain.evidence import Loaded, Published
from tests.domain.descriptors import with_kv
from workers.kv_connector.jobs import LoadJob, SaveBlock, SaveJob
from workers.kv_connector.loading import Loader
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.saving import Saver
from workers.kv_connector.weights import shards, weights_digest

LAYERS, KV_HEADS, CONTENT = 30, 3, 128
"""Of SmolLM2-135M in float32, as vLLM lays it out: K and V of 64 numbers each."""
OWN = with_kv(block_size=32)
SIZE = OWN.kv.block_size
CACHE_BLOCKS = 256
TENANT = "bench"
ROUNDS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    load_bandwidth_ratio: float
    save_bandwidth_ratio: float
    load_mb_s: float
    save_mb_s: float
    plain_load_mb_s: float
    plain_save_mb_s: float


def measure_storage(folder: Path, tokens: int = 2016) -> Storage:
    """Interleaved, so that both sides of a ratio see the same machine; medians."""
    caches = {
        f"model.layers.{i}.self_attn.attn": torch.randn(CACHE_BLOCKS, KV_HEADS, SIZE, CONTENT)
        for i in range(LAYERS)
    }
    tensors = tuple(
        Tensor(name=name, dtype=str(cache.dtype), shape=tuple(cache.shape[1:]))
        for name, cache in caches.items()
    )
    store, paged = LocalStore(folder / "kv"), PagedBlocks(OWN, tensors, caches)
    loader, saver = Loader(store, paged), Saver(store, paged, BootId("bench"))
    count = tokens // SIZE
    size = count * paged.block_bytes
    ids = tuple(range(count))
    saves: list[float] = []
    plain_saves, loads, plain_loads = [], [], []
    for number in range(ROUNDS):
        manifest = _saved(saver, store, number, ids, saves)
        plain_saves.append(_timed(lambda: _plain_save(paged, ids, folder / "plain")))
        loads.append(_timed(lambda manifest=manifest: _load(loader, manifest, ids)))  # type: ignore[misc]
        plain_loads.append(_timed(lambda: _plain_load(paged, ids, folder / "plain")))
        for written in (folder / "plain", store.root):
            shutil.rmtree(written)
    loader.shutdown()
    saver.shutdown()
    load, save, plain_load, plain_save = map(statistics.median, (loads, saves, plain_loads, plain_saves))
    return Storage(
        load_bandwidth_ratio=plain_load / load,
        save_bandwidth_ratio=plain_save / save,
        load_mb_s=size / load / 1e6,
        save_mb_s=size / save / 1e6,
        plain_load_mb_s=size / plain_load / 1e6,
        plain_save_mb_s=size / plain_save / 1e6,
    )


def _saved(
    saver: Saver, store: LocalStore, number: int, ids: tuple[int, ...], times: list[float]
) -> Manifest:
    tokens = tuple(number * 10_000 + i for i in range(len(ids) * SIZE))
    keys = block_keys(OWN.digest, TENANT, tokens, SIZE)
    blocks = tuple(
        SaveBlock(key=key, block_id=block_id, made_by=MadeBy.PREFILL, stored=None)
        for key, block_id in zip(keys, ids, strict=True)
    )
    handle = ArtifactId(f"kv_{secrets.token_hex(8)}")
    job = SaveJob(request_id="r", attempt="a", tenant=TENANT, artifact=handle, lease_s=3600, blocks=blocks)
    began = time.perf_counter()
    published = saver.save(job, None)
    times.append(time.perf_counter() - began)
    if not isinstance(published, Published):
        raise SystemExit(f"nothing was saved: {published}")
    return Manifest.from_bytes(store.read_manifest(TENANT, handle))


def _load(loader: Loader, manifest: Manifest, ids: tuple[int, ...]) -> None:
    job = LoadJob(
        request_id="r",
        tenant=TENANT,
        artifact=manifest.artifact,
        revision=manifest.revision,
        producer=manifest.producer,
        expires_ms=manifest.expires_ms,
        blocks=manifest.blocks,
        block_ids=ids,
    )
    outcome = loader.load(job, None)
    if not isinstance(outcome, Loaded):
        raise SystemExit(f"nothing was loaded: {outcome}")


def _plain_save(paged: PagedBlocks, ids: tuple[int, ...], folder: Path) -> None:
    """Copy out, write, sync: one file a block, one after the other."""
    folder.mkdir()
    buffer = paged.own_buffer()
    for block in ids:
        paged.copy_out(block, buffer)
        with (folder / str(block)).open("wb", buffering=0) as file:
            file.write(buffer.memory)
            os.fsync(file.fileno())


def _plain_load(paged: PagedBlocks, ids: tuple[int, ...], folder: Path) -> None:
    """Read and copy in: one file a block, one after the other, nothing checked."""
    buffer = paged.own_buffer()
    for block in ids:
        with (folder / str(block)).open("rb", buffering=0) as file:
            file.readinto(buffer.memory)
        paged.copy_in(buffer, block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashing:
    hash_ratio: float
    hash_mb_s: float
    cached_start_ms: float


def measure_hashing(model: Path, folder: Path) -> Hashing:
    """Against one plain digest of each file, one after the other."""
    files = shards(model)
    ours, plain = [], []
    for number in range(5):
        plain.append(_timed(lambda: [_plain_digest(path) for path in files]))
        ours.append(_timed(lambda number=number: weights_digest(model, folder / f"hashes{number}")))  # type: ignore[misc]
    cached = _timed(lambda: weights_digest(model, folder / "hashes0"))
    size = sum(path.stat().st_size for path in files)
    best = min(ours)
    return Hashing(hash_ratio=min(plain) / best, hash_mb_s=size / best / 1e6, cached_start_ms=cached * 1000)


def _plain_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
