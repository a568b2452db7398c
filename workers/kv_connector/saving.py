"""Publishes a finished request's blocks: each block once, whole and synced, and the manifest last."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from service.domain.adapter import effective
from service.domain.artifact import Block, BootId, MadeBy, Manifest
from service.domain.evidence import Published
from service.domain.revision import Descriptor, RevisionDigest
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable, checksum
from workers.kv_connector.holds import GivenUp, Hold
from workers.kv_connector.jobs import WEIGHTS_CHANGED, SaveBlock, SaveJob
from workers.kv_connector.lanes import Lanes
from workers.kv_connector.paged import Buffer, PagedBlocks
from workers.kv_connector.recent_blocks import Known, RecentBlocks
from workers.kv_connector.store import LONGEST_TRANSFER_S, BlockStore

LANES = 4
"""They mostly wait for the disk, which syncs several files sooner together than one after the other."""

TRIES = 2
"""Once, and once more after a damaged block of the same name was put aside."""


class Saver:
    def __init__(
        self,
        store: BlockStore,
        paged: PagedBlocks,
        boot: BootId,
        weight_changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`weight_changes`: how often the weights were changed in place since they were measured."""
        self._store = store
        self._paged = paged
        self._boot = boot
        self._weight_changes = weight_changes
        self._lanes = Lanes("everturn-write", width=LANES)
        self._recent = RecentBlocks()

    def save(self, job: SaveJob, mark: Any, hold: Hold | None = None) -> Published | str:
        """What was published, or in words why nothing was; blocks without a manifest are invisible."""
        own, started = effective(self._paged.own, job.adapter), time.monotonic()
        hold = hold or Hold()
        try:
            stored = self._write(job, own.digest, mark, hold)
            hold.require()
            if self._weight_changes():
                return WEIGHTS_CHANGED
            if time.monotonic() > started + LONGEST_TRANSFER_S:
                return f"writing its blocks took longer than {LONGEST_TRANSFER_S:g} s"
            return self._publish(job, own, stored)
        except OSError as error:
            return f"the store refused: {error}"
        except GivenUp as given_up:
            return str(given_up)

    def shutdown(self) -> None:
        self._lanes.shutdown()

    def _write(
        self, job: SaveJob, revision: RevisionDigest, mark: Any, hold: Hold
    ) -> list[tuple[Block, MadeBy]]:
        written: dict[str, tuple[Block, MadeBy]] = {}

        def lane(blocks: Iterable[SaveBlock]) -> None:
            buffer, spare = self._paged.own_buffer(), self._paged.own_buffer(1)
            with self._paged.device.copies(mark) as finish_copies:
                for block in blocks:
                    began, found = time.monotonic(), self._kept(job, revision, block)
                    if found is None:
                        with hold.touching():
                            self._paged.copy_out(block.block_id, buffer)
                            finish_copies()
                        began, header = time.monotonic(), self._header(job, revision, block, buffer)
                        found = self._put(header, buffer, spare)
                    self._recent.add(block.key, job.attempt, found, began)
                    written[block.key] = found

        self._lanes.each(job.blocks, lane)
        return [written[block.key] for block in job.blocks]

    def _kept(self, job: SaveJob, revision: RevisionDigest, block: SaveBlock) -> Known | None:
        """What stands in the store and is known to be whole: this request has loaded it, or an earlier chunk of its rebuild put it there.

        Whoever loads it compares it with the manifest once more, and refuses one that was damaged since.
        """
        stored = None if block.stored is None else (block.stored, block.made_by)
        known = stored or self._recent.find(block.key, job.attempt)
        return known if known and self._store.keep_block(job.tenant, revision, block.key) else None

    def _header(
        self, job: SaveJob, revision: RevisionDigest, block: SaveBlock, buffer: Buffer
    ) -> BlockHeader:
        return BlockHeader(
            key=block.key,
            tenant=job.tenant,
            revision=revision,
            producer=self._boot,
            made_by=block.made_by,
            tensors=self._paged.tensors,
            checksum=checksum(buffer.memory).hexdigest(),
            size=self._paged.block_bytes,
        )

    def _put(self, header: BlockHeader, buffer: Buffer, spare: Buffer) -> tuple[Block, MadeBy]:
        for _ in range(TRIES):
            if self._store.put_block(header, buffer.memory):
                return _entry(header), header.made_by
            standing = self._standing(header, spare)
            if standing is not None:
                return _entry(standing), standing.made_by
        raise OSError(f"block {header.key} can neither be read nor replaced")

    def _standing(self, ours: BlockHeader, spare: Buffer) -> BlockHeader | None:
        """The sound block that already has this name. One that is not sound goes, and None comes back."""
        try:
            theirs, checksum = self._store.read_block(ours.tenant, ours.revision, ours.key, spare.memory)
        except FileNotFoundError:
            return None
        except BlockUnreadable:
            theirs, checksum = None, ""
        if theirs is not None and theirs.checksum == checksum and theirs.is_same_block(ours):
            return theirs if self._store.keep_block(ours.tenant, ours.revision, ours.key) else None
        self._store.quarantine(ours.tenant, ours.revision, ours.key)
        return None

    def _publish(self, job: SaveJob, own: Descriptor, stored: list[tuple[Block, MadeBy]]) -> Published | str:
        created_ms = time.time_ns() // 1_000_000
        manifest = Manifest(
            artifact=job.artifact,
            tenant=job.tenant,
            descriptor=own,
            producer=self._boot,
            attempt=job.attempt,
            made_by=MadeBy.DECODE if any(how is MadeBy.DECODE for _, how in stored) else MadeBy.PREFILL,
            created_ms=created_ms,
            expires_ms=created_ms + job.lease_s * 1000,
            token_count=len(stored) * own.kv.block_size,
            block_size=own.kv.block_size,
            tensors=self._paged.tensors,
            blocks=tuple(block for block, _ in stored),
        )
        if not self._store.put_manifest(manifest):
            return f"the handle {job.artifact} is taken"
        return Published(
            artifact=job.artifact,
            revision=own.digest,
            producer=self._boot,
            made_by=manifest.made_by,
            tokens=manifest.token_count,
            blocks=len(manifest.blocks),
            bytes=sum(block.size for block in manifest.blocks),
            expires_ms=manifest.expires_ms,
            tip=manifest.blocks[-1].key,
        )


def _entry(header: BlockHeader) -> Block:
    return Block(key=header.key, checksum=header.checksum, size=header.size)
