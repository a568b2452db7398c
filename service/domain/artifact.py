"""KV artifacts: the manifest of stored blocks, and `admit`, the one decision whether an engine may read them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from re import fullmatch
from struct import pack
from typing import Any, NewType, Self

from service.domain import canonical
from service.domain.contract import Contract, breach_of
from service.domain.errors import InvalidDescriptor, InvalidManifest
from service.domain.revision import Descriptor, RevisionDigest, differing_fields

ArtifactId = NewType("ArtifactId", str)
BootId = NewType("BootId", str)

MANIFEST_FORMAT = 1
SERIALIZER_ABI = 2
"""Moves with every change of the block file's bytes; part of the KV identity."""

TOKENS_LEFT_TO_COMPUTE = 2
"""A continuation with one remaining token is not bitwise the cold prefill; with two it is (measured)."""


class RefusalReason(StrEnum):
    REVISION_MISMATCH = "revision_mismatch"
    REVISION_UNKNOWN = "revision_unknown"
    CONTRACT_INVALID = "contract_invalid"
    CONTRACT_EXPIRED = "contract_expired"
    TENANT_MISMATCH = "tenant_mismatch"
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 a reason, not a secret
    LEASE_EXPIRED = "lease_expired"
    HANDLE_INVALID = "handle_invalid"
    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_INCOMPLETE = "manifest_incomplete"
    LAYOUT_UNSUPPORTED = "layout_unsupported"
    BLOCK_MISSING = "block_missing"
    BLOCK_UNREADABLE = "block_unreadable"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    STORE_UNREACHABLE = "store_unreachable"
    INTERNAL_ERROR = "internal_error"


MISFITS = frozenset(
    {
        RefusalReason.REVISION_MISMATCH,
        RefusalReason.REVISION_UNKNOWN,
        RefusalReason.CONTRACT_INVALID,
        RefusalReason.CONTRACT_EXPIRED,
        RefusalReason.TOKEN_MISMATCH,
    }
)
"""A whole artifact, offered to the wrong reader."""

NOT_THE_ARTIFACTS_FAULT = MISFITS | {
    RefusalReason.STORE_UNREACHABLE,
    RefusalReason.LAYOUT_UNSUPPORTED,
    RefusalReason.INTERNAL_ERROR,
}
"""Refusals after which another turn may still be offered the artifact."""


class MadeBy(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One layer's slice of a block, in the engine's own layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    key: str
    checksum: str
    """SHA-256 of the payload, hex."""
    size: int
    """Payload bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    artifact: ArtifactId
    tenant: str
    descriptor: Descriptor
    producer: BootId
    attempt: str
    made_by: MadeBy
    created_ms: int
    expires_ms: int
    token_count: int
    block_size: int
    tensors: tuple[Tensor, ...]
    blocks: tuple[Block, ...]

    @property
    def revision(self) -> RevisionDigest:
        return self.descriptor.digest

    def to_bytes(self) -> bytes:
        # The descriptor says for itself how it is written, and is as large as all the rest.
        document = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "format": MANIFEST_FORMAT,
            "revision": self.revision,
            "descriptor": self.descriptor.to_json(),
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "blocks": [asdict(block) for block in self.blocks],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises: InvalidManifest for anything that this version did not write whole."""
        try:
            return cls._from_document(json.loads(data))
        except (ValueError, TypeError, KeyError, RecursionError, InvalidDescriptor) as error:
            raise InvalidManifest(f"The manifest cannot be read: {error}.", "manifest") from error

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Self:
        written = document.pop("format")
        if type(written) is not int or written != MANIFEST_FORMAT:
            msg = "another manifest format"
            raise ValueError(msg)
        claimed = document.pop("revision")
        manifest = cls(
            **document
            | {
                "descriptor": Descriptor.from_json(document["descriptor"]),
                "made_by": MadeBy(document["made_by"]),
                "tensors": tuple(Tensor(**t | {"shape": tuple(t["shape"])}) for t in document["tensors"]),
                "blocks": tuple(Block(**b) for b in document["blocks"]),
            }
        )
        _require_types(manifest)
        if manifest.revision != claimed:
            msg = "its digest is not that of its descriptor"
            raise ValueError(msg)
        if manifest.token_count != len(manifest.blocks) * manifest.block_size or not manifest.blocks:
            msg = "its blocks do not cover its tokens"
            raise ValueError(msg)
        return manifest


def _require_types(manifest: Manifest) -> None:
    """JSON promises none. Raises: ValueError."""
    names = (manifest.artifact, manifest.tenant, manifest.producer, manifest.attempt)
    counts = (manifest.created_ms, manifest.expires_ms, manifest.token_count)
    sizes = (manifest.block_size, *(block.size for block in manifest.blocks))
    lengths = tuple(length for tensor in manifest.tensors for length in tensor.shape)
    digests = tuple(text for block in manifest.blocks for text in (block.key, block.checksum))
    words = tuple(text for tensor in manifest.tensors for text in (tensor.name, tensor.dtype))
    if not all(type(text) is str for text in (*names, *words, *digests)):
        msg = "a name in it is no text"
        raise ValueError(msg)
    if not all(type(number) is int and number >= 0 for number in (*counts, *lengths)):
        msg = "a count in it is no number"
        raise ValueError(msg)
    if not all(type(size) is int and size > 0 for size in sizes):
        msg = "a size in it is no number above 0"
        raise ValueError(msg)
    if not all(fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
        msg = "a key or checksum in it is no SHA-256"
        raise ValueError(msg)
    if parse_artifact_id(manifest.artifact) != manifest.artifact:
        msg = "its own name is no handle"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """`blocks` leading blocks may be loaded: they cover the first `tokens` tokens of the prompt."""

    blocks: int
    tokens: int
    contract: Contract | None = None
    """By which the KV of another revision is read; None for the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: RefusalReason
    detail: str
    differing: tuple[str, ...] = ()


def admit(
    manifest: Manifest,
    *,
    own: Descriptor | None,
    tenant: str,
    prompt: Sequence[int],
    tensors: Sequence[Tensor],
    now_ms: int,
    contract: Contract | None = None,
) -> Admitted | Refused:
    """The consumer's decision, from its own measured revision; unknown, missing or unlike is refused.

    Args:
        manifest: what the store holds under the offered handle.
        own: what this engine measured of itself; None while it is not known.
        tenant: whose request this is.
        prompt: all token ids of the request.
        tensors: the engine's own KV tensors per block.
        now_ms: the consumer's clock, epoch milliseconds.
        contract: what its operator approved; used for KV of another revision, and only where it permits that.
    """
    if own is None:
        return Refused(reason=RefusalReason.REVISION_UNKNOWN, detail="this engine has not measured itself")
    if manifest.revision == own.digest:
        contract = None
    elif refused := refused_by_contract(contract, own=own, theirs=manifest.descriptor, now_ms=now_ms):
        return refused
    if manifest.tenant != tenant:
        return Refused(reason=RefusalReason.TENANT_MISMATCH, detail="the artifact is another tenant's")
    if now_ms >= manifest.expires_ms:
        return Refused(reason=RefusalReason.LEASE_EXPIRED, detail=f"expired at {manifest.expires_ms}")
    if tuple(tensors) != manifest.tensors or manifest.block_size != own.kv.block_size:
        return Refused(reason=RefusalReason.MANIFEST_INCOMPLETE, detail="its tensors are not this engine's")
    return _admit_tokens(manifest, prompt, contract)


def refused_by_contract(
    contract: Contract | None, *, own: Descriptor, theirs: Descriptor, now_ms: int
) -> Refused | None:
    """For KV of another revision than `own`: refused, unless a contract permits it."""
    differing = differing_fields(own, theirs)
    if contract is None:
        return Refused(
            reason=RefusalReason.REVISION_MISMATCH,
            detail=f"made under {theirs.digest}, this engine is {own.digest}",
            differing=differing,
        )
    breach = breach_of(contract, own=own, theirs=theirs, now_ms=now_ms)
    if breach is None:
        return None
    return Refused(
        reason=RefusalReason.CONTRACT_EXPIRED if breach.expired else RefusalReason.CONTRACT_INVALID,
        detail=f"contract {contract.id}: {breach.detail}",
        differing=differing,
    )


def _admit_tokens(manifest: Manifest, prompt: Sequence[int], contract: Contract | None) -> Admitted | Refused:
    usable = min(manifest.token_count, len(prompt) - TOKENS_LEFT_TO_COMPUTE)
    wanted = max(usable, 0) // manifest.block_size
    keys = block_keys(manifest.revision, manifest.tenant, prompt, manifest.block_size)[:wanted]
    matched = 0
    while matched < len(keys) and keys[matched] == manifest.blocks[matched].key:
        matched += 1
    if matched == 0:
        return Refused(
            reason=RefusalReason.TOKEN_MISMATCH, detail="it covers other tokens than this prompt's"
        )
    return Admitted(blocks=matched, tokens=matched * manifest.block_size, contract=contract)


def block_keys(
    revision: RevisionDigest, tenant: str, tokens: Sequence[int], block_size: int
) -> tuple[str, ...]:
    """256-bit names of the whole blocks of `tokens`, each chained on all before it, rooted in revision and tenant."""
    parent = sha256(canonical.encode(["everturn-kv", SERIALIZER_ABI, revision, tenant, block_size])).digest()
    keys = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = sha256(parent + pack_tokens(tokens[start : start + block_size])).digest()
        keys.append(parent.hex())
    return tuple(keys)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Little-endian uint32, as stored in Postgres and hashed everywhere."""
    return pack(f"<{len(tokens)}I", *tokens)


def parse_artifact_id(text: object) -> ArtifactId | Refused:
    """A handle is a plain name; anything that could leave the store's folder is refused before any read."""
    if isinstance(text, str) and fullmatch(r"kv_[0-9a-z]{8,64}", text):
        return ArtifactId(text)
    return Refused(reason=RefusalReason.HANDLE_INVALID, detail="a handle is 'kv_' and 8 to 64 of 0-9a-z")
