"""The facts of a rollout, on its own stream of the fleet; each says who moved it, and why."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NewType

from service.domain.artifact import BootId
from service.domain.revision import RevisionDigest

RolloutId = NewType("RolloutId", str)

ITSELF = "everturn"
"""Who it was where nobody's hand was in it."""


class RolloutState(StrEnum):
    PLANNED = "planned"
    WARMING = "warming"
    SHIFTING = "shifting"
    DRAINING = "draining"
    DONE = "done"
    PAUSED = "paused"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled_back"


class Drain(StrEnum):
    """What becomes of the engines of the revision that was left."""

    NEVER = "never"
    UNPINNED = "unpinned"
    """They drain, unless a conversation is `stay_strict` on them."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """So many percent of the conversations are on the target, and so for at least `hold_s`."""

    percent: int
    hold_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """It pauses by itself where more than this has happened on the target."""

    refusals: int
    failed_attempts: int
    failed_rebuilds: int
    failed_canaries: int = 0
    """Engines of the target that did not answer as its first one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    warm: int
    """Conversations, the most recently active first, whose KV is rebuilt on the target before any is moved."""
    warm_tokens_per_s: int | None
    """The pace of that; None for as fast as workers are."""
    shift: tuple[Share, ...]
    """Rising to 100 percent."""
    drain: Drain
    limits: Limits
    max_engine_load: int | None = None
    """Warm-ups are held back while the least busy engine that could do them has more requests under way; None never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStarted:
    name: ClassVar = "rollout.started"
    rollout: RolloutId
    alias: str
    source: RevisionDigest
    target: RevisionDigest
    strategy: Strategy
    by: str
    reason: str
    back_of: RolloutId | None = None
    """The rollout that this one takes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStepped:
    name: ClassVar = "rollout.stepped"
    rollout: RolloutId
    step: int
    state: RolloutState
    percent: int
    engines: tuple[BootId, ...]
    """Set draining by this step."""
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPaused:
    name: ClassVar = "rollout.paused"
    rollout: RolloutId
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResumed:
    """What went wrong is counted from here on."""

    name: ClassVar = "rollout.resumed"
    rollout: RolloutId
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAborted:
    """Every conversation is answered on the source again."""

    name: ClassVar = "rollout.aborted"
    rollout: RolloutId
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRolledBack:
    name: ClassVar = "rollout.rolled_back"
    rollout: RolloutId
    successor: RolloutId
    """The rollout that leads back."""
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDone:
    name: ClassVar = "rollout.done"
    rollout: RolloutId
    by: str
    reason: str


RolloutMove = (
    RolloutStepped | RolloutPaused | RolloutResumed | RolloutAborted | RolloutRolledBack | RolloutDone
)
