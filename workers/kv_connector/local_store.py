"""A KV store in a folder: files that are synced under another name and then linked to their own, which never overwrites."""

import fcntl
import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from service.domain.artifact import ArtifactId, Manifest
from service.domain.errors import InvalidInput
from service.domain.revision import RevisionDigest
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable, checksum, payload_start
from workers.kv_connector.store import (
    GRACE_MS,
    BlockStore,
    ObjectName,
    StoredObject,
    block_name,
    manifest_name,
    quarantined_name,
    too_long,
)

logger = logging.getLogger("vllm.everturn")

STALE_AFTER_S = 3600

HEAD_BYTES = 1 << 14
"""What is read of a block at first: its header, most likely."""


class LocalStore(BlockStore):
    parallel_reads: ClassVar[int] = min(4, os.cpu_count() or 1)
    """Hashing keeps a core busy in each; beyond that they would take cores from the forward pass."""

    grace_ms: ClassVar[int] = GRACE_MS

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.address = str(root)
        self._temporary = root / "tmp"

    def path(self, name: ObjectName) -> Path:
        return self.root / name

    def block_path(self, tenant: str, revision: RevisionDigest, key: str) -> Path:
        return self.path(block_name(tenant, revision, key))

    def manifest_path(self, tenant: str, artifact: ArtifactId) -> Path:
        return self.path(manifest_name(tenant, artifact))

    def read_block(
        self, tenant: str, revision: RevisionDigest, key: str, payload: memoryview
    ) -> tuple[BlockHeader, str]:
        # Few calls: each of them waits for the interpreter, which the forward pass of others may hold.
        handle = os.open(self.block_path(tenant, revision, key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(handle, HEAD_BYTES, 0)
            start = payload_start(head)
            if start > len(head):
                head = os.pread(handle, start, 0)
            header = BlockHeader.read_from(BytesIO(head[:start]))
            _read_whole(handle, payload, start)
            if header.size != len(payload) or os.pread(handle, 1, start + len(payload)):
                raise BlockUnreadable("it is not as long as this engine's blocks")
        finally:
            os.close(handle)
        return header, checksum(payload).hexdigest()

    def keep_block(self, tenant: str, revision: RevisionDigest, key: str) -> bool:
        try:
            os.utime(self.block_path(tenant, revision, key))
        except FileNotFoundError:
            return False
        return True

    def put_manifest(self, manifest: Manifest) -> bool:
        _sync_folder(self.block_path(manifest.tenant, manifest.revision, manifest.blocks[0].key).parent)
        return super().put_manifest(manifest)

    def use_manifest(self, tenant: str, artifact: ArtifactId) -> None:
        with suppress(OSError):  # gone meanwhile, or a store that cannot be written
            os.utime(self.manifest_path(tenant, artifact))

    def sweep(self) -> None:
        oldest = time.time() - STALE_AFTER_S
        try:
            for path in self._temporary.iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            return  # nothing was written yet, or another engine sweeps too
        except OSError as error:
            logger.warning("Everturn could not sweep its KV store: %s", error)

    def require(self, *, make: bool) -> None:
        if not make and not self.root.is_dir():
            raise InvalidInput(f"'{self.root}' is no folder: name the one that engines were given", "store")
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"'{self.root}' cannot be made ({error.strerror}): give a folder that can", "store"
            ) from error

    def list(self, folder: str) -> Iterator[StoredObject]:
        for entry in _files(self.root / folder):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it went between the listing and the look
            yield StoredObject(
                name=ObjectName(str(Path(entry.path).relative_to(self.root))),
                size=status.st_size,
                changed_ms=status.st_mtime_ns // 1_000_000,
            )

    def leftovers(self, standing: Collection[ObjectName]) -> Iterator[StoredObject]:  # noqa: ARG002 needs no look
        return self.list("tmp")

    def open(self, name: ObjectName) -> BinaryIO:
        return self.path(name).open("rb")

    def remove(self, name: ObjectName) -> bool:
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def put_aside(self, name: ObjectName) -> None:
        kept = self.path(quarantined_name(name, time.time_ns()))
        kept.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            self.path(name).rename(kept)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root / "collector.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def _read(self, name: ObjectName, most: int, *, hasty: bool) -> bytes:  # noqa: ARG002 a disk has one speed
        with self.path(name).open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise too_long(most)
        return data

    def _publish(self, name: ObjectName, head: bytes, body: memoryview) -> bool:
        path = self.path(name)
        for folder in (path.parent, self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary / f"{os.getpid()}-{time.monotonic_ns()}-{path.name[:16]}"
        try:
            with temporary.open("xb", buffering=0) as file:
                for part in (head, body):
                    _write_whole(file, part)
                os.fsync(file.fileno())
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        if path.suffix == ".json":
            _sync_folder(path.parent)
        return True


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield entry


def _write_whole(file: Any, part: bytes | memoryview) -> None:
    view = memoryview(part)
    while view:
        view = view[file.write(view) :]


def _read_whole(handle: int, payload: memoryview, start: int) -> None:
    done = 0
    while done < len(payload):
        count = os.preadv(handle, [payload[done:]], start + done)
        if not count:
            raise BlockUnreadable(f"it ends {len(payload) - done} bytes early")
        done += count


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
