"""A KV store in a bucket, over the S3 protocol: one conditional PUT for each block and manifest, whole or not there at all.

The only module that imports obstore. It must be used first after the last fork: obstore's threads do not live through one.
"""

import errno
import io
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from re import search
from typing import Any, BinaryIO, ClassVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from service.domain.artifact import ArtifactId, Manifest
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import RevisionDigest
from workers.kv_connector.block_file import (
    MOST_BEFORE_PAYLOAD,
    BlockHeader,
    BlockUnreadable,
    checksum,
    split_block,
)
from workers.kv_connector.marks import FOLDER, MARK_EVERY_S, Marks, mark_of, marked_by
from workers.kv_connector.patience import WAIT_S
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

CHUNK_BYTES = 1 << 20


class ObjectStore(BlockStore):
    parallel_reads: ClassVar[int] = 8
    """They mostly wait for the network."""

    grace_ms: ClassVar[int] = GRACE_MS + int(MARK_EVERY_S * 1000)
    """A block that was kept so long ago is not marked again."""

    def __init__(self, bucket: str, prefix: str) -> None:
        super().__init__()
        self.address = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._client = _client(bucket, prefix, timeout_s=10.0, retries=2)
        # Longer than anybody waits for it, so that who waited in vain is remembered: see Patience.
        self._hasty = _client(bucket, prefix, timeout_s=3 * WAIT_S, retries=0)
        self._marks = Marks(self._overwrite)

    def read_block(
        self, tenant: str, revision: RevisionDigest, key: str, payload: memoryview
    ) -> tuple[BlockHeader, str]:
        with _answers():
            found = obstore.get(self._client, block_name(tenant, revision, key))
            if found.meta["size"] > MOST_BEFORE_PAYLOAD + len(payload):
                raise BlockUnreadable("it is longer than this engine's blocks")
            data = memoryview(found.bytes())
        header, stored = split_block(data)
        if not header.size == len(payload) == len(stored):
            raise BlockUnreadable("it is not as long as this engine's blocks")
        payload[:] = stored
        return header, checksum(payload).hexdigest()

    def keep_block(self, tenant: str, revision: RevisionDigest, key: str) -> bool:
        name = block_name(tenant, revision, key)
        try:
            with _answers():
                obstore.head(self._client, name)
        except FileNotFoundError:
            return False
        self._marks.make(name)
        return True

    def put_manifest(self, manifest: Manifest) -> bool:
        """True also where the answer to a first try was lost on its way, and the second finds its manifest."""
        if super().put_manifest(manifest):
            return True
        try:
            return Manifest.from_bytes(self.read_manifest(manifest.tenant, manifest.artifact)) == manifest
        except InvalidManifest:
            return False

    def use_manifest(self, tenant: str, artifact: ArtifactId) -> None:
        self._marks.make_soon(manifest_name(tenant, artifact))

    def sweep(self) -> None:
        """Nothing: what was not written whole is not there."""

    def require(self, *, make: bool) -> None:  # noqa: ARG002 buckets are made by whoever owns them
        try:
            with _answers():
                next(iter(obstore.list(self._client, "manifests", chunk_size=1)), None)
        except OSError as error:
            raise InvalidInput(
                f"'{self.address}' does not answer ({error.strerror}): make the bucket, and give its endpoint and key "
                "in AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
                "store",
            ) from error

    def list(self, folder: str) -> Iterator[StoredObject]:
        marked = {marked_by(mark.name): mark.changed_ms for mark in self._objects(f"{FOLDER}/{folder}")}
        for found in self._objects(folder):
            changed_ms = max(found.changed_ms, marked.get(found.name, 0))
            yield StoredObject(name=found.name, size=found.size, changed_ms=changed_ms)

    def leftovers(self, standing: Collection[ObjectName]) -> Iterator[StoredObject]:
        return (mark for mark in self._objects(FOLDER) if marked_by(mark.name) not in standing)

    def open(self, name: ObjectName) -> BinaryIO:
        with _answers():
            chunks = obstore.get(self._client, name).stream(CHUNK_BYTES)
        return io.BufferedReader(_Body(iter(chunks)), CHUNK_BYTES)

    def remove(self, name: ObjectName) -> bool:
        """True also where it was gone: the protocol does not tell."""
        with _answers():
            obstore.delete(self._client, [name, mark_of(name)])
        return True

    def put_aside(self, name: ObjectName) -> None:
        """A copy first, and then it goes: whoever dies between leaves both."""
        try:
            with _answers():
                obstore.copy(self._client, name, quarantined_name(name, time.time_ns()))
        except FileNotFoundError:
            return
        self.remove(name)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Always: two collectors do the same work twice, and no harm."""
        yield True

    def _publish(self, name: ObjectName, head: bytes, body: memoryview) -> bool:
        try:
            with _answers():
                obstore.put(self._client, name, b"".join((head, body)), mode="create")
        except FileExistsError:
            return False
        return True

    def _read(self, name: ObjectName, most: int, *, hasty: bool) -> bytes:
        with _answers():
            found = obstore.get(self._hasty if hasty else self._client, name)
            if found.meta["size"] > most:
                raise too_long(most)
            return bytes(found.bytes())

    def _overwrite(self, name: ObjectName) -> None:
        with _answers():
            obstore.put(self._client, name, b"")

    def _objects(self, folder: str) -> Iterator[StoredObject]:
        with _answers():
            for chunk in obstore.list(self._client, folder, chunk_size=1000):
                for meta in chunk:
                    yield StoredObject(
                        name=ObjectName(meta["path"]),
                        size=meta["size"],
                        changed_ms=int(meta["last_modified"].timestamp() * 1000),
                    )


class _Body(io.RawIOBase):
    """An answer's body, as it comes in."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            with _answers():
                self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _client(bucket: str, prefix: str, *, timeout_s: float, retries: int) -> S3Store:
    """Endpoint, region and credentials are taken from the process's AWS_* environment, by obstore itself."""
    with _answers():
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                # Where the endpoint that the operator gave is one.
                "allow_http": True,
                "connect_timeout": timedelta(seconds=min(timeout_s, 2.0)),
                "timeout": timedelta(seconds=timeout_s),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=timeout_s)},
        )


@contextmanager
def _answers() -> Iterator[None]:
    """Raises: OSError for whatever else than an answer comes back."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        # No bucket is no answer: an artifact is only missing where others could be found.
        raise OSError(errno.ENXIO if "NoSuchBucket" in str(error) else errno.ENOENT, _told(error)) from error
    except AlreadyExistsError as error:
        raise OSError(errno.EEXIST, _told(error)) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise OSError(errno.EACCES, _told(error)) from error
    except BaseError as error:
        raise OSError(errno.EIO, _told(error)) from error
    except BaseException as error:
        # Of Rust, for an endpoint that is no address, for one. No name to import, and no Exception: it would end an engine.
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(errno.EIO, f"obstore gave up: {error}") from error


def _told(error: Exception) -> str:
    """What the object store said, or why it said nothing, in one line; obstore tells it in forty."""
    text = str(error)
    status = search(r"status code: (\d+ [A-Za-z ]+)", text)
    if status is None:
        cause = search(r'message: "([^"]+)"', text) or search(r"source: (\w+),?\n", text)
        said = text.partition("\n")[0].rpartition(" - ")[2]
        return f"{said}: {cause[1]}" if cause else said
    code = search(r"<Code>(\w+)</Code>", text)
    return f"{status[1].strip()}, {code[1]}" if code else status[1].strip()
