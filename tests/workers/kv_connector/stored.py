"""Stored KV without an engine: artifacts of small blocks, as many as a test likes."""

from pathlib import Path

from service.domain.artifact import ArtifactId, Block, BootId, MadeBy, Manifest, Tensor, block_keys
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12
from workers.kv_connector.block_file import BlockHeader, checksum
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import BlockStore, ObjectName, block_name

TENSORS = (Tensor(name="layer.0", dtype="torch.float32", shape=(2, 4)),)
SIZE = V12.kv.block_size
FAR_MS = 4_000_000_000_000


def put(
    store: BlockStore,
    handle: str,
    tokens: tuple[int, ...],
    *,
    tenant: str = "acme",
    own: Descriptor = V12,
    boot: str = "boot_a",
    created_ms: int = 1_000,
    expires_ms: int = FAR_MS,
    payload_bytes: int = 64,
) -> Manifest:
    """As an engine would publish it; the payload stands for the tokens' KV."""
    blocks = []
    for key in block_keys(own.digest, tenant, tokens, SIZE):
        payload = (bytes.fromhex(key) * payload_bytes)[:payload_bytes]
        header = BlockHeader(
            key=key,
            tenant=tenant,
            revision=own.digest,
            producer=BootId(boot),
            made_by=MadeBy.PREFILL,
            tensors=TENSORS,
            checksum=checksum(payload).hexdigest(),
            size=len(payload),
        )
        store.put_block(header, memoryview(payload))
        blocks.append(Block(key=key, checksum=header.checksum, size=header.size))
    manifest = Manifest(
        artifact=ArtifactId(handle),
        tenant=tenant,
        descriptor=own,
        producer=BootId(boot),
        attempt="att",
        made_by=MadeBy.PREFILL,
        created_ms=created_ms,
        expires_ms=expires_ms,
        token_count=len(blocks) * SIZE,
        block_size=SIZE,
        tensors=TENSORS,
        blocks=tuple(blocks),
    )
    assert store.put_manifest(manifest)
    return manifest


def names(manifest: Manifest) -> list[ObjectName]:
    return [block_name(manifest.tenant, manifest.revision, block.key) for block in manifest.blocks]


def paths(store: LocalStore, manifest: Manifest) -> list[Path]:
    return [store.block_path(manifest.tenant, manifest.revision, block.key) for block in manifest.blocks]


def conversation(number: int, *, shared: int = 0, own: int = 1) -> tuple[int, ...]:
    """Tokens of `shared` blocks that all conversations begin with, and of `own` blocks that none shares."""
    return tuple(range(shared * SIZE)) + tuple(1_000_000 + number * 1_000 + i for i in range(own * SIZE))
