"""Reads an admitted artifact's blocks into the KV cache, and trusts none of them: every block is checked before it is copied."""

import time
from typing import Any

from service.domain.artifact import Block, RefusalReason
from service.domain.evidence import Loaded, Refusal
from workers.kv_connector.jobs import LoadJob
from workers.kv_connector.paged import PagedBlocks, memory
from workers.kv_connector.store import BlockHeader, BlockStore, BlockUnreadable


class Unfit(Exception):
    """This block may not enter the KV cache."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Loader:
    def __init__(self, store: BlockStore, paged: PagedBlocks) -> None:
        self._store = store
        self._paged = paged

    def load(self, job: LoadJob, mark: Any) -> Loaded | Refusal:
        """On refusal the request's blocks hold nothing of use, and the engine must not compute on them."""
        started = time.monotonic()
        try:
            _check_lease(job)
            self._fill(job, mark)
            _check_lease(job)
        except Unfit as unfit:
            return refusal(job, unfit.reason, str(unfit))
        return Loaded(
            artifact=job.artifact,
            revision=job.revision,
            producer=job.producer,
            tokens=len(job.blocks) * self._paged.own.kv.block_size,
            bytes=len(job.blocks) * self._paged.block_bytes,
            seconds=time.monotonic() - started,
        )

    def _fill(self, job: LoadJob, mark: Any) -> None:
        buffer = self._paged.host_buffer()
        with self._paged.copies(mark) as finish_copies:
            for block, block_id in zip(job.blocks, job.block_ids, strict=True):
                header, checksum = self._read(job, block, memory(buffer))
                self._check(job, block, header, checksum)
                self._paged.copy_in(buffer, block_id)
                finish_copies()

    def _read(self, job: LoadJob, block: Block, payload: memoryview) -> tuple[BlockHeader, str]:
        own = self._paged.own.digest
        try:
            return self._store.read_block(job.tenant, own, block.key, payload)
        except FileNotFoundError as error:
            raise Unfit(RefusalReason.BLOCK_MISSING, f"block {block.key} is gone") from error
        except BlockUnreadable as error:
            self._store.quarantine(job.tenant, own, block.key)
            raise Unfit(RefusalReason.BLOCK_UNREADABLE, f"block {block.key}: {error}") from error
        except OSError as error:
            raise Unfit(RefusalReason.STORE_UNREACHABLE, str(error)) from error

    def _check(self, job: LoadJob, block: Block, header: BlockHeader, checksum: str) -> None:
        """The block's own word first, then the manifest's: who made it, whose it is, what it holds, its bytes."""
        own = self._paged.own.digest
        name = f"block {block.key}"
        if checksum != header.checksum:
            self._store.quarantine(job.tenant, own, block.key)
            raise Unfit(RefusalReason.CHECKSUM_MISMATCH, f"{name} is not what was written")
        if header.revision != own or job.revision != own:
            raise Unfit(
                RefusalReason.REVISION_MISMATCH, f"{name} was made under {header.revision}, not {own}"
            )
        if header.tenant != job.tenant:
            raise Unfit(RefusalReason.TENANT_MISMATCH, f"{name} is another tenant's")
        if header.key != block.key or header.tensors != self._paged.tensors:
            raise Unfit(RefusalReason.BLOCK_UNREADABLE, f"{name} holds other tokens or other tensors")
        if header.checksum != block.checksum:
            # Whole in itself, so nothing to quarantine: another writer replaced what the manifest lists.
            raise Unfit(RefusalReason.CHECKSUM_MISMATCH, f"{name} was written anew since the manifest")


def refusal(job: LoadJob, reason: RefusalReason, detail: str) -> Refusal:
    return Refusal(
        artifact=job.artifact,
        reason=reason,
        detail=detail,
        artifact_revision=job.revision,
        artifact_producer=job.producer,
    )


def _check_lease(job: LoadJob) -> None:
    if time.time_ns() // 1_000_000 >= job.expires_ms:
        raise Unfit(
            RefusalReason.LEASE_EXPIRED, f"it expired at {job.expires_ms}, before its blocks were all read"
        )
