"""What stands before a block's payload, so that a block says by itself whose it is; and the seal that shows it whole."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from typing import Any, BinaryIO

from blake3 import blake3

from service.domain.artifact import BootId, MadeBy, Tensor
from service.domain.errors import InvalidManifest
from service.domain.revision import RevisionDigest

BLOCK_FORMAT = 2
MAX_HEADER_BYTES = 1 << 20
LENGTH_BYTES = 8
SEAL_BYTES = 32
MOST_BEFORE_PAYLOAD = LENGTH_BYTES + SEAL_BYTES + MAX_HEADER_BYTES


def checksum(payload: memoryview | bytes = b"") -> blake3:
    """Of 256 bits; BLAKE3, since a load's time is mostly that of its check. It lets go of the interpreter."""
    return blake3(payload)


class BlockUnreadable(Exception):
    """Its bytes are not a whole block file of this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    key: str
    tenant: str
    revision: RevisionDigest
    producer: BootId
    made_by: MadeBy
    tensors: tuple[Tensor, ...]
    checksum: str
    size: int

    def is_same_block(self, other: "BlockHeader") -> bool:
        """Of the same tokens, revision, tenant and layout; made by whichever engine, in whichever way."""
        return (self.key, self.tenant, self.revision, self.tensors, self.size) == (
            other.key,
            other.tenant,
            other.revision,
            other.tensors,
            other.size,
        )

    def to_bytes(self) -> bytes:
        """With its length and its seal in front."""
        document = asdict(self) | {"format": BLOCK_FORMAT}
        data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return len(data).to_bytes(LENGTH_BYTES, "little") + sha256(data).digest() + data

    @classmethod
    def read_from(cls, file: BinaryIO) -> "BlockHeader":
        """Leaves `file` at the payload. Raises: BlockUnreadable, OSError."""
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise BlockUnreadable(f"its header claims {length} bytes")
        seal, data = file.read(SEAL_BYTES), file.read(length)
        if sha256(data).digest() != seal:
            raise BlockUnreadable("its header is not what was written")
        try:
            return cls._from_document(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BlockUnreadable(f"its header cannot be read: {error}") from error

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> "BlockHeader":
        written = document.pop("format")
        if type(written) is not int or written != BLOCK_FORMAT:
            msg = "another block format"
            raise ValueError(msg)
        tensors = tuple(Tensor(**t | {"shape": tuple(t["shape"])}) for t in document["tensors"])
        return cls(**document | {"tensors": tensors, "made_by": MadeBy(document["made_by"])})


def split_block(data: memoryview) -> tuple[BlockHeader, memoryview]:
    """A whole block file in memory: its header and its payload, which is not copied. Raises: BlockUnreadable."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + SEAL_BYTES + min(length, MAX_HEADER_BYTES)
    return BlockHeader.read_from(BytesIO(data[:start])), data[start:]


def sealed(data: bytes) -> bytes:
    """A manifest as it lies in the store: its SHA-256 in hex, a line break, and itself."""
    return sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(data: bytes) -> bytes:
    """Raises: InvalidManifest for anything that is not, byte for byte, what was sealed."""
    seal, _, manifest = data.partition(b"\n")
    if seal != sha256(manifest).hexdigest().encode():
        raise InvalidManifest("The manifest cannot be read: it is not what was written.", "manifest")
    return manifest
