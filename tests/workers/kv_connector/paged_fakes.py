"""A KV cache of two small layers in plain memory, as vLLM would register it, and whoever reads and writes it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from service.domain.artifact import ArtifactId, BootId, MadeBy, Manifest, Tensor, block_keys
from service.domain.evidence import Published
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12
from workers.kv_connector.jobs import LoadJob, SaveBlock, SaveJob
from workers.kv_connector.loading import Loader
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.saving import Saver
from workers.kv_connector.store import BlockStore

BLOCKS, HEADS, CONTENT = 8, 2, 6
SIZE = V12.kv.block_size
TENANT = "acme"
TOKENS = tuple(range(3 * SIZE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One engine's cache, and its hands on the store."""

    caches: dict[str, torch.Tensor]
    store: BlockStore
    paged: PagedBlocks
    loader: Loader
    saver: Saver


def side(
    where: Path | BlockStore,
    *,
    own: Descriptor = V12,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Side:
    random = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, HEADS, SIZE, CONTENT)
    caches = {
        f"layer.{index}": torch.randn(shape, generator=random)
        .to(dtype)
        .transpose(1, 2)
        .contiguous()
        .transpose(1, 2)
        for index in range(2)
    }
    tensors = tuple(Tensor(name=n, dtype=str(dtype), shape=tuple(c.shape[1:])) for n, c in caches.items())
    store = LocalStore(where) if isinstance(where, Path) else where
    paged = PagedBlocks(own, tensors, caches)
    boot = BootId(f"boot_{seed}")
    return Side(
        caches=caches, store=store, paged=paged, loader=Loader(store, paged), saver=Saver(store, paged, boot)
    )


def save(
    from_: Side,
    handle: str,
    *,
    block_ids: tuple[int, ...] = (5, 1, 3),
    lease_s: int = 60,
    mark: object = None,
    attempt: str = "rb_a.1",
) -> Published | str:
    """`mark`: of the device, if it is none of the host's."""
    keys = block_keys(from_.paged.own.digest, TENANT, TOKENS, SIZE)
    blocks = tuple(
        SaveBlock(key=key, block_id=block_id, made_by=MadeBy.PREFILL, stored=None)
        for key, block_id in zip(keys, block_ids, strict=True)
    )
    job = SaveJob(
        request_id="r",
        attempt=attempt,
        tenant=TENANT,
        artifact=ArtifactId(handle),
        lease_s=lease_s,
        blocks=blocks,
    )
    return from_.saver.save(job, mark)


def load_job(manifest: Manifest, *, block_ids: tuple[int, ...] = (0, 7, 2)) -> LoadJob:
    return LoadJob(
        request_id="r",
        tenant=TENANT,
        artifact=manifest.artifact,
        revision=manifest.revision,
        producer=manifest.producer,
        expires_ms=manifest.expires_ms,
        blocks=manifest.blocks,
        block_ids=block_ids,
    )


def manifest_of(reader: Side, handle: str) -> Manifest:
    return Manifest.from_bytes(reader.store.read_manifest(TENANT, ArtifactId(handle)))
