"""What the scheduler side asks of the worker side each step, and what the worker side answers."""

from dataclasses import dataclass

from service.domain.artifact import ArtifactId, Block, BootId, MadeBy
from service.domain.contract import Contract
from service.domain.evidence import Loaded, Published, Refusal
from service.domain.revision import Descriptor, RevisionDigest

WEIGHTS_CHANGED = "its weights were changed in place after they were measured; start it anew to measure them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """What the worker side needs to judge a contract by itself."""

    contract: Contract
    producer: Descriptor


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
    adapter: str = "none"
    """Of the request: the engine's own revision is that with this adapter in it."""
    waiver: Waiver | None = None
    """Present where `revision` is not the engine's own."""


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
    adapter: str = "none"


@dataclass(frozen=True, slots=True)
class Jobs:
    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    lost: tuple[str, ...] = ()
    """Requests that wait for a load which could not be planned; they must be told that it failed."""


NO_JOBS = Jobs()
"""Of most steps."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """By request id; every job is answered by exactly one entry."""

    loaded: dict[str, Loaded | Refusal]
    saved: dict[str, Published | str]
    stalled: bool = False
    """The store hangs: a transfer has not got on for so long that no other should begin."""
