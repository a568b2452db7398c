"""The hashes that hold a stream together, as Postgres computes them while it appends; verified here, away from it.

A chain link is SHA-256(link before, digest of the event); the first one follows nothing. The digest covers what an
event fixes, and the commitment to its content, which may be erased. The SQL is in migrations/views.
"""

from dataclasses import dataclass
from hashlib import sha256
from struct import pack

DIGEST_LABEL = b"everturn.event.v1"
SALT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What of an event can be erased."""

    salt: bytes
    content: bytes | None
    tokens: bytes | None

    def commitment(self) -> bytes:
        return sha256(self.salt + _part(self.content) + _part(self.tokens)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An event as its digest sees it: `occurred_us` counts from 2000-01-01 UTC, `payload` is jsonb's own text."""

    tenant: str
    stream: str
    version: int
    type: str
    schema_number: int
    occurred_us: int
    payload: str
    commitment: bytes | None

    def digest(self) -> bytes:
        parts = [
            DIGEST_LABEL,
            _text(self.tenant),
            _text(self.stream),
            pack(">q", self.version),
            _text(self.type),
            pack(">qq", self.schema_number, self.occurred_us),
            _text(self.payload),
            self.commitment or b"",
        ]
        return sha256(b"".join(parts)).digest()


def link(previous: bytes, digest: bytes) -> bytes:
    return sha256(previous + digest).digest()


def _part(data: bytes | None) -> bytes:
    return b"\0" if data is None else b"\1" + pack(">q", len(data)) + data


def _text(value: str) -> bytes:
    data = value.encode()
    return pack(">i", len(data)) + data
