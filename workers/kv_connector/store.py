"""What engines, the collector and operators ask of a KV store, wherever it lies, and the names of what lies in it.

Layout and bytes: docs/kv-format.md. Nothing here trusts what is stored: whoever reads checks it against a manifest.
"""

import errno
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from re import fullmatch
from typing import BinaryIO, ClassVar, NewType

from service.domain.artifact import ArtifactId, Manifest, Refused, parse_artifact_id
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import Descriptor, RevisionDigest, parse_digest
from workers.kv_connector.block_file import BlockHeader, sealed, unsealed
from workers.kv_connector.patience import Patience

logger = logging.getLogger("vllm.everturn")

ObjectName = NewType("ObjectName", str)
"""Of whatever lies in a store: its folders and its own name, parted by `/`, as docs/kv-format.md lays them out."""

LONGEST_TRANSFER_S = 90.0
"""A load or a publication that takes longer, from its first block to its last, is given up."""

GRACE_MS = 120_000
"""Until then a block that nobody names may be under a load or a publication; with room for the last block's own time."""

MAX_MANIFEST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    name: ObjectName
    size: int
    changed_ms: int
    """When it was written, or last used or kept. By the store's clock."""


def block_name(tenant: str, revision: RevisionDigest, key: str) -> ObjectName:
    """Raises: InvalidInput for anything that could lead elsewhere."""
    if not fullmatch(r"[0-9a-f]{64}", key):
        raise InvalidInput("A block's key is a SHA-256 in hex.", "key")
    return ObjectName(f"blocks/{_folder(tenant)}/{parse_digest(revision)}/{key}")


def manifest_name(tenant: str, artifact: ArtifactId) -> ObjectName:
    """Raises: InvalidInput for anything that could lead elsewhere."""
    parsed = parse_artifact_id(artifact)
    if isinstance(parsed, Refused):
        raise InvalidInput(f"{artifact[:80]!r} is no artifact: {parsed.detail}", "artifact")
    return ObjectName(f"manifests/{_folder(tenant)}/{parsed}.json")


def _folder(tenant: str) -> str:
    return sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class BlockStore(ABC):
    """Content-addressed blocks, and manifests that appear last and whole.

    Whatever has no answer raises OSError, and FileNotFoundError where there is no such object. Safe to use from many threads.
    """

    address: str
    """As a person gave it."""

    parallel_reads: ClassVar[int]
    """Blocks of one load that are best read at a time."""

    grace_ms: ClassVar[int]
    """How long the collector leaves a block that nobody names."""

    def __init__(self) -> None:
        self._patience = Patience()

    # For engines

    def put_block(self, header: BlockHeader, payload: memoryview) -> bool:
        """False where a block of this name already stands; it is left as it is."""
        return self._publish(
            block_name(header.tenant, header.revision, header.key), header.to_bytes(), payload
        )

    @abstractmethod
    def read_block(
        self, tenant: str, revision: RevisionDigest, key: str, payload: memoryview
    ) -> tuple[BlockHeader, str]:
        """Fills `payload` and gives the header and the payload's own SHA-256.

        Raises:
            BlockUnreadable: damaged, or not of the size of `payload`.
        """

    @abstractmethod
    def keep_block(self, tenant: str, revision: RevisionDigest, key: str) -> bool:
        """Whether it stands; if so, the collector takes it for new, and leaves its writer time for the manifest."""

    def put_manifest(self, manifest: Manifest) -> bool:
        """The last step of a publication; False where the handle is taken."""
        return self._publish(
            manifest_name(manifest.tenant, manifest.artifact), sealed(manifest.to_bytes()), memoryview(b"")
        )

    def read_manifest(self, tenant: str, artifact: ArtifactId) -> bytes:
        """In a moment, or not at all: the scheduler waits for it.

        Raises:
            InvalidManifest: it is not, byte for byte, what was published.
            TimeoutError: the store took too long, now or a moment ago.
        """
        name = manifest_name(tenant, artifact)
        return unsealed(self._patience.within(lambda: self._read(name, MAX_MANIFEST_BYTES, hasty=True)))

    @abstractmethod
    def use_manifest(self, tenant: str, artifact: ArtifactId) -> None:
        """Marks it as used now: what was used longest ago is evicted first. Never raises, and nobody waits for it."""

    def put_descriptor(self, descriptor: Descriptor) -> None:
        """So that anyone can name the fields in which a foreign digest differs."""
        data = json.dumps(descriptor.to_json(), sort_keys=True).encode()
        try:
            self._publish(_descriptor_name(descriptor.digest), data, memoryview(b""))
        except OSError as error:
            logger.warning("Everturn cannot write to its KV store %s: %s", self.address, error)

    def read_descriptor(self, digest: str) -> Descriptor | None:
        """None where it is unknown here, unreadable or late: it only explains, it never decides."""
        try:
            name = _descriptor_name(parse_digest(digest))
            data = self._patience.within(lambda: self._read(name, MAX_MANIFEST_BYTES, hasty=True))
            return Descriptor.from_json(json.loads(data))
        except (OSError, ValueError, InvalidInput):
            return None

    def quarantine(self, tenant: str, revision: RevisionDigest, key: str) -> None:
        """Out of the way of its repair, and kept for whoever asks what happened."""
        try:
            self.put_aside(block_name(tenant, revision, key))
        except OSError as error:
            logger.warning("Everturn cannot put block %s aside: %s", key, error)

    @abstractmethod
    def sweep(self) -> None:
        """Removes what writers that were killed left half-written. Never raises."""

    # For the collector and operators

    @abstractmethod
    def require(self, *, make: bool) -> None:
        """Raises: InvalidInput where it cannot be used; with `make`, only if it could not be made either."""

    @abstractmethod
    def list(self, folder: str) -> Iterator[StoredObject]:
        """All below one of the layout's folders."""

    @abstractmethod
    def leftovers(self, standing: Collection[ObjectName]) -> Iterator[StoredObject]:
        """What only was of use to something that is gone; `standing` are all blocks and manifests."""

    def read(self, name: ObjectName) -> bytes:
        """A manifest, as it lies there. Raises: InvalidManifest where it is too long for one."""
        return self._read(name, MAX_MANIFEST_BYTES, hasty=False)

    @abstractmethod
    def open(self, name: ObjectName) -> BinaryIO:
        """To be read once, from its beginning."""

    @abstractmethod
    def remove(self, name: ObjectName) -> bool:
        """False where it is known to have been gone."""

    @abstractmethod
    def put_aside(self, name: ObjectName) -> None:
        """A block or manifest, into quarantine; nothing where it is gone."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[bool]:
        """Whether nobody else collects here meanwhile, as far as this kind of store can tell."""

    # What the above is made of

    @abstractmethod
    def _publish(self, name: ObjectName, head: bytes, body: memoryview) -> bool:
        """Whole and for good, or not at all; False where the name is taken."""

    @abstractmethod
    def _read(self, name: ObjectName, most: int, *, hasty: bool) -> bytes:
        """At most `most` bytes, else InvalidManifest; `hasty` for whoever is not going to wait long."""


def too_long(most: int) -> InvalidManifest:
    return InvalidManifest(f"The manifest is longer than {most} bytes.", "manifest")


def own_name(name: ObjectName) -> str:
    """Without the folders."""
    return name.rpartition("/")[2]


def quarantined_name(name: ObjectName, now_ns: int) -> ObjectName:
    return ObjectName(f"quarantine/{own_name(name)}.{now_ns}")


def _descriptor_name(digest: RevisionDigest) -> ObjectName:
    return ObjectName(f"revisions/{digest}.json")


def words(error: OSError) -> str:
    """What went wrong, without a number in front of it."""
    return error.strerror or str(error) or errno.errorcode.get(error.errno or 0, "no answer")
