"""What the scheduler side asks of the worker side each step, and what the worker side answers."""

from dataclasses import dataclass
from typing import Self

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from service.domain.artifact import ArtifactId, Block, BootId, MadeBy
from service.domain.evidence import Loaded, Published, Refusal
from service.domain.revision import RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Fill `block_ids` with `blocks`, one to one, for a request that waits for them."""

    request_id: str
    tenant: str
    artifact: ArtifactId
    revision: RevisionDigest
    producer: BootId
    expires_ms: int
    blocks: tuple[Block, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveBlock:
    key: str
    block_id: int
    made_by: MadeBy
    stored: Block | None
    """Known to stand in the store already, because this request verified and loaded it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """Write the blocks, then the manifest; the engine keeps `block_ids` until the answer."""

    request_id: str
    attempt: str
    tenant: str
    artifact: ArtifactId
    lease_s: int
    blocks: tuple[SaveBlock, ...]


@dataclass(frozen=True, slots=True)
class Jobs(KVConnectorMetadata):  # type: ignore[misc]
    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    lost: tuple[str, ...] = ()
    """Requests that wait for a load which could not be planned; they must be told that it failed."""


@dataclass(frozen=True, slots=True)
class Outcomes(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """By request id; every job is answered by exactly one entry."""

    loaded: dict[str, Loaded | Refusal]
    saved: dict[str, Published | str]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Self:
        """One worker's outcomes: jobs are only ever given to engines of a single rank."""
        if isinstance(other, Outcomes):
            return type(self)(loaded=self.loaded | other.loaded, saved=self.saved | other.saved)
        return self


@dataclass(frozen=True, slots=True)
class Measurement(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """A rank's measured identity as JSON, or why there is none; the rest is what clients must know to ask it."""

    descriptor: str | None
    tensors: str
    error: str | None
    stop_token_ids: tuple[int, ...]
