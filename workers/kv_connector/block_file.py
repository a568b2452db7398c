"""What stands before a block's payload, so that a block says by itself whose it is; and the seal that shows it whole."""

import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import BinaryIO

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


_STRING = rb'"(?:[^"\\]|\\.)*"'
HEADER = re.compile(
    rb'\{"checksum":"(?P<checksum>[0-9a-f]{64})","format":%d,"key":"(?P<key>[0-9a-f]{64})",'
    rb'"made_by":"(?P<made_by>[a-z]+)","producer":(?P<producer>%s),"revision":"(?P<revision>rev_[0-9a-f]{64})",'
    rb'"size":(?P<size>[1-9][0-9]{0,15}),"tenant":(?P<tenant>%s),"tensors":(?P<tensors>\[.*\])\}'
    % (BLOCK_FORMAT, _STRING, _STRING)
)
"""Exactly as `BlockHeader.to_bytes` writes it: nothing else is a header, and a load does not wait for a JSON parser."""


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
        found = HEADER.fullmatch(data)
        if found is None:
            raise BlockUnreadable("its header is not of this format")
        try:
            return cls(
                key=found["key"].decode(),
                tenant=_text(found["tenant"]),
                revision=RevisionDigest(found["revision"].decode()),
                producer=BootId(_text(found["producer"])),
                made_by=MadeBy(found["made_by"].decode()),
                tensors=_tensors(found["tensors"]),
                checksum=found["checksum"].decode(),
                size=int(found["size"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BlockUnreadable(f"its header cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _text(text: bytes) -> str:
    """Of a JSON string; all blocks of an artifact have the same, or nearly. Raises: ValueError."""
    read: str = json.loads(text)
    if json.dumps(read).encode() != text:
        msg = "a name in it is not as it is written"
        raise ValueError(msg)
    return read


@lru_cache(maxsize=4)
def _tensors(text: bytes) -> tuple[Tensor, ...]:
    """All blocks of an engine have the same. Raises: ValueError, TypeError, KeyError, RecursionError."""
    tensors = tuple(Tensor(**one | {"shape": tuple(one["shape"])}) for one in json.loads(text))
    lengths = (length for tensor in tensors for length in tensor.shape)
    if _tensors_json(tensors) != text or not all(type(length) is int for length in lengths):
        msg = "its tensors are not as they are written"
        raise ValueError(msg)
    return tensors


def _tensors_json(tensors: tuple[Tensor, ...]) -> bytes:
    return json.dumps([asdict(tensor) for tensor in tensors], sort_keys=True, separators=(",", ":")).encode()


def split_block(data: memoryview) -> tuple[BlockHeader, memoryview]:
    """A whole block file in memory: its header and its payload, which is not copied. Raises: BlockUnreadable."""
    start = payload_start(data)
    return BlockHeader.read_from(BytesIO(data[:start])), data[start:]


def payload_start(data: memoryview | bytes) -> int:
    """As a block file's first bytes claim; `BlockHeader.read_from` tells whether they may."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    return LENGTH_BYTES + SEAL_BYTES + min(length, MAX_HEADER_BYTES)


def sealed(data: bytes) -> bytes:
    """A manifest as it lies in the store: its SHA-256 in hex, a line break, and itself."""
    return sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(data: bytes) -> bytes:
    """Raises: InvalidManifest for anything that is not, byte for byte, what was sealed."""
    seal, _, manifest = data.partition(b"\n")
    if seal != sha256(manifest).hexdigest().encode():
        raise InvalidManifest("The manifest cannot be read: it is not what was written.", "manifest")
    return manifest
