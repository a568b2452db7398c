"""What the service tells an engine's connector of a request, and what the connector reports that really happened."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.contract import ContractId
from service.domain.errors import InvalidInput
from service.domain.revision import RevisionDigest

PARAMS_KEY = "everturn"
"""Where a `KvRequest` stands in vLLM's `kv_transfer_params`."""

REVISION_HEADER = "x-everturn-revision"
BOOT_HEADER = "x-everturn-boot"
"""On requests: what the caller takes the engine to be. On responses: what it is."""

TOLD_HEADER = "x-everturn-told"
TOLD_KEY = "everturn_told"
"""A request to generate that has the header says under the key what its answer is told apart by; each chunk of the stream then
has there what the engine's parsers make of it: kind of item, function of a call that begins, and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRequest:
    attempt: str
    tenant: str
    offer: str | None = None
    """Handle of an artifact that the engine may read, if it admits it."""
    publish: ArtifactId | None = None
    """Under which handle to publish this request's KV once it has finished well; None publishes nothing."""
    lease_s: int = 86_400
    contract: ContractId | None = None
    """Under which the offer may be of another revision, if the engine's operator has given it that contract."""

    def to_params(self) -> dict[str, Any]:
        return {PARAMS_KEY: asdict(self)}

    @classmethod
    def from_params(cls, params: Mapping[str, Any] | None) -> Self | None:
        """None where the request does not speak to us; a malformed one is refused whole.

        Raises:
            InvalidInput: naming the field.
        """
        document = (params or {}).get(PARAMS_KEY)
        if document is None:
            return None
        if not isinstance(document, dict) or set(document) - set(cls.__slots__):
            raise InvalidInput(f"'kv_transfer_params.{PARAMS_KEY}' has unknown fields.", PARAMS_KEY)
        for name in ("attempt", "tenant"):
            if not isinstance(document.get(name), str) or not document[name]:
                raise InvalidInput(
                    f"'kv_transfer_params.{PARAMS_KEY}.{name}' must be a non-empty string.", name
                )
        return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The consumer's recorded decision not to use an artifact."""

    artifact: str
    reason: RefusalReason
    detail: str
    differing: tuple[str, ...] = ()
    artifact_revision: RevisionDigest | None = None
    artifact_producer: BootId | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            **dict(document)
            | {"reason": RefusalReason(document["reason"]), "differing": tuple(document["differing"])}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """KV that was verified and copied into the engine before its first forward pass of the request."""

    artifact: ArtifactId
    revision: RevisionDigest
    producer: BootId
    tokens: int
    bytes: int
    seconds: float
    contract: ContractId | None = None
    """By which KV of another revision was read; None for the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    artifact: ArtifactId
    revision: RevisionDigest
    producer: BootId
    made_by: MadeBy
    tokens: int
    blocks: int
    bytes: int
    expires_ms: int
    tip: str
    """Key of the last block: the digest of the whole token prefix under this revision and tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One attempt as its engine saw it. `published` and `publish_failure` are both None until known."""

    attempt: str
    boot: BootId
    revision: RevisionDigest | None
    """As the engine measured itself; None refuses all stored KV."""
    prompt_tokens: int
    local_tokens: int = 0
    """Found in the engine's own prefix cache."""
    loaded: Loaded | None = None
    refusal: Refusal | None = None
    refused_tokens: int = 0
    """That the refused artifact covers, as far as this engine read what it says of itself."""
    published: Published | None = None
    publish_failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        parts = {
            "loaded": Loaded(**document["loaded"]) if document["loaded"] else None,
            "refusal": Refusal.from_json(document["refusal"]) if document["refusal"] else None,
            "published": _published(document["published"]) if document["published"] else None,
        }
        return cls(**dict(document) | parts)


def _published(document: Mapping[str, Any]) -> Published:
    return Published(**dict(document) | {"made_by": MadeBy(document["made_by"])})
