"""Reads an admitted artifact's blocks into the KV cache, and trusts none of them: every block is checked before it is copied."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from service.domain.adapter import effective
from service.domain.artifact import Block, RefusalReason, Tensor, refused_by_contract
from service.domain.evidence import Loaded, Refusal
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable
from workers.kv_connector.holds import GivenUp, Hold
from workers.kv_connector.jobs import WEIGHTS_CHANGED, LoadJob
from workers.kv_connector.lanes import Lanes
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.store import LONGEST_TRANSFER_S, BlockStore

TOO_SLOW = f"it took longer than {LONGEST_TRANSFER_S:g} s"


class Unfit(Exception):
    """This block may not enter the KV cache."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Loader:
    def __init__(
        self, store: BlockStore, paged: PagedBlocks, weight_changes: Callable[[], int] = lambda: 0
    ) -> None:
        """`weight_changes`: how often the weights were changed in place since they were measured."""
        self._store = store
        self._paged = paged
        self._weight_changes = weight_changes
        self._lanes = Lanes("everturn-read", width=store.parallel_reads)
        self._fitting: tuple[Tensor, ...] | None = None
        """As the last header had them that fitted: most blocks of a load share one."""

    def load(self, job: LoadJob, mark: Any, hold: Hold | None = None) -> Loaded | Refusal:
        """On refusal the request's blocks hold nothing of use, and the engine must not compute on them."""
        started = time.monotonic()
        try:
            self._check_may_read(job)
            self._store.use_manifest(job.tenant, job.artifact)
            self._fill(job, mark, hold or Hold(), started + LONGEST_TRANSFER_S)
            self._check_may_read(job)
        except Unfit as unfit:
            return refusal(job, unfit.reason, str(unfit))
        except GivenUp as given_up:
            return refusal(job, RefusalReason.STORE_UNREACHABLE, str(given_up))
        return Loaded(
            artifact=job.artifact,
            revision=job.revision,
            producer=job.producer,
            tokens=len(job.blocks) * self._paged.own.kv.block_size,
            bytes=len(job.blocks) * self._paged.block_bytes,
            seconds=time.monotonic() - started,
            contract=job.waiver.contract.id if job.waiver else None,
        )

    def shutdown(self) -> None:
        self._lanes.shutdown()

    def _check_may_read(self, job: LoadJob) -> None:
        """Once more what the scheduler side has checked, before the bytes are read and after."""
        if self._weight_changes():
            raise Unfit(RefusalReason.REVISION_UNKNOWN, WEIGHTS_CHANGED)
        now_ms = time.time_ns() // 1_000_000
        if now_ms >= job.expires_ms:
            raise Unfit(
                RefusalReason.LEASE_EXPIRED,
                f"it expired at {job.expires_ms}, before its blocks were all read",
            )
        own, waiver = effective(self._paged.own, job.adapter), job.waiver
        if job.revision == own.digest and waiver is None:
            return
        if waiver is None or waiver.producer.digest != job.revision:
            raise Unfit(
                RefusalReason.REVISION_MISMATCH, f"made under {job.revision}, this engine is {own.digest}"
            )
        refused = refused_by_contract(waiver.contract, own=own, theirs=waiver.producer, now_ms=now_ms)
        if refused is not None:
            raise Unfit(refused.reason, refused.detail)

    def _fill(self, job: LoadJob, mark: Any, hold: Hold, until: float) -> None:
        def lane(pairs: Iterable[tuple[Block, int]]) -> None:
            buffer = self._paged.own_buffer()
            with self._paged.device.copies(mark) as finish_copies:
                for block, block_id in pairs:
                    if time.monotonic() > until:
                        raise Unfit(RefusalReason.STORE_UNREACHABLE, TOO_SLOW)
                    header, checksum = self._read(job, block, buffer.memory)
                    self._check(job, block, header, checksum)
                    with hold.touching():
                        self._paged.copy_in(buffer, block_id)
                        finish_copies()

        self._lanes.each(zip(job.blocks, job.block_ids, strict=True), lane)

    def _read(self, job: LoadJob, block: Block, payload: memoryview) -> tuple[BlockHeader, str]:
        try:
            return self._store.read_block(job.tenant, job.revision, block.key, payload)
        except FileNotFoundError as error:
            raise Unfit(RefusalReason.BLOCK_MISSING, f"block {block.key} is gone") from error
        except BlockUnreadable as error:
            self._store.quarantine(job.tenant, job.revision, block.key)
            raise Unfit(RefusalReason.BLOCK_UNREADABLE, f"block {block.key}: {error}") from error
        except OSError as error:
            raise Unfit(RefusalReason.STORE_UNREACHABLE, str(error)) from error

    def _check(self, job: LoadJob, block: Block, header: BlockHeader, checksum: str) -> None:
        """The block's own word first, then the manifest's: who made it, whose it is, what it holds, its bytes."""
        name = f"block {block.key}"
        if checksum != header.checksum:
            self._store.quarantine(job.tenant, job.revision, block.key)
            raise Unfit(RefusalReason.CHECKSUM_MISMATCH, f"{name} is not what was written")
        if header.revision != job.revision:
            raise Unfit(
                RefusalReason.REVISION_MISMATCH,
                f"{name} was made under {header.revision}, not {job.revision}",
            )
        if header.tenant != job.tenant:
            raise Unfit(RefusalReason.TENANT_MISMATCH, f"{name} is another tenant's")
        if header.key != block.key or not self._fits(header.tensors):
            raise Unfit(RefusalReason.BLOCK_UNREADABLE, f"{name} holds other tokens or other tensors")
        if (header.checksum, header.size) != (block.checksum, block.size):
            # Whole in itself, so nothing to quarantine: another writer replaced what the manifest lists.
            raise Unfit(RefusalReason.CHECKSUM_MISMATCH, f"{name} was written anew since the manifest")

    def _fits(self, tensors: tuple[Tensor, ...]) -> bool:
        if tensors is self._fitting:
            return True
        if tensors != self._paged.tensors:
            return False
        self._fitting = tensors
        return True


def refusal(job: LoadJob, reason: RefusalReason, detail: str) -> Refusal:
    return Refusal(
        artifact=job.artifact,
        reason=reason,
        detail=detail,
        artifact_revision=job.revision,
        artifact_producer=job.producer,
    )
