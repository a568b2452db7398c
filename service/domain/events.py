"""The facts of a conversation, an alias and an engine, under explicit stored names; the only truth there is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NewType

from service.domain.artifact import ArtifactId, BootId
from service.domain.contract import Contract, ContractId
from service.domain.evidence import Loaded, Refusal
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId, RolloutMove, RolloutStarted

TenantId = NewType("TenantId", str)
ConversationId = NewType("ConversationId", str)
ItemId = NewType("ItemId", str)
TurnId = NewType("TurnId", str)

FLEET = TenantId("fleet")
"""Owner of the streams that no tenant owns: aliases, engines, rollouts."""


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class OnUpgrade(StrEnum):
    REPLAY = "replay"
    STAY = "stay"
    STAY_STRICT = "stay_strict"


class PolicyLevel(StrEnum):
    TURN = "turn"
    CONVERSATION = "conversation"
    ALIAS = "alias"
    TENANT = "tenant"
    DEFAULT = "default"


class PlanKind(StrEnum):
    COLD = "cold"
    REUSE = "reuse"
    STAY = "stay"
    REBUILD = "rebuild"
    WAIT = "wait"
    REFUSE = "refuse"


class KvSource(StrEnum):
    NONE = "none"
    REUSED = "reused"
    REBUILT = "rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    max_output_tokens: int
    temperature: float
    top_p: float
    top_logprobs: int | None = None
    """Whether log-probabilities are asked for, and of how many other candidates for each token."""


@dataclass(frozen=True, slots=True)
class Candidate:
    token: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    logprob: float
    top: tuple[Candidate, ...] = ()
    """The likeliest candidates in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationCreated:
    name: ClassVar = "conversation.created"
    alias: str
    on_upgrade: OnUpgrade | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationForked:
    """What comes before this stream's own events: its parent's, as far as the one that completed `turn`."""

    name: ClassVar = "conversation.forked"
    parent: ConversationId
    parent_version: int
    turn: TurnId
    parent_chain: str
    """The chain of the parent's stream at that version, hex: this stream's own chain holds it fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAccepted:
    name: ClassVar = "message.accepted"
    item: ItemId
    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationUpdated:
    name: ClassVar = "conversation.updated"
    metadata: Mapping[str, str]
    """In place of what there was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationDeleted:
    """Nobody reads it or goes on with it; its history stays in the log."""

    name: ClassVar = "conversation.deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDeleted:
    """No later prompt has it."""

    name: ClassVar = "item.deleted"
    item: ItemId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseDeleted:
    """The record of a turn is read no more; what it said stays in the conversation."""

    name: ClassVar = "response.deleted"
    turn: TurnId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    name: ClassVar = "turn.started"
    turn: TurnId
    items: tuple[ItemId, ...]
    alias: str
    on_upgrade: OnUpgrade
    policy_level: PolicyLevel
    sampling: Sampling
    metadata: Mapping[str, str] = field(default_factory=dict)
    instructions: ItemId | None = None
    """The system message among `items` that the caller gave as instructions."""
    revision: RevisionDigest | None = None
    """The only one that may answer, where the client named one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPinned:
    """An attempt is bound to one revision and one engine boot, for the reason that the plan gave."""

    name: ClassVar = "turn.pinned"
    turn: TurnId
    attempt: int
    plan: PlanKind
    reason: str
    revision: RevisionDigest
    engine: BootId
    offer: ArtifactId | None
    carry_tokens: bool
    """Whether the stored token ids are extended; if not, history is rendered anew from its messages."""
    contract: ContractId | None = None
    """By which the offer may be of another revision than the attempt."""
    rollout: RolloutId | None = None
    """That the alias was in: it, and its step, decided which revision the conversation is to be on."""
    rollout_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRefused:
    name: ClassVar = "kv.refused"
    turn: TurnId
    attempt: int
    engine: BootId
    engine_revision: RevisionDigest | None
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRebuilt:
    name: ClassVar = "kv.rebuilt"
    turn: TurnId
    attempt: int
    rebuild: str
    artifact: ArtifactId
    revision: RevisionDigest
    producer: BootId
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    name: ClassVar = "attempt.failed"
    turn: TurnId
    attempt: int
    reason: str
    partial_text: str = ""
    """Evidence of what was streamed before the failure; never history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStreamed:
    """How the answer was cut on its way to the client: what a stream that broke off is resumed by."""

    name: ClassVar = "turn.streamed"
    turn: TurnId
    item: ItemId
    pieces: tuple[int, ...]
    """Characters of each delta, in order; 0 where a further attempt was announced."""
    announced: tuple[RevisionDigest, ...]
    """The revisions of those attempts."""
    lost: bool
    """The attempt after those had other words: the stream ended there, and the turn went on."""
    text: str
    """What was sent, where the accepted answer is not that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScored:
    """How likely the answer's tokens were, for a client who asked."""

    name: ClassVar = "turn.scored"
    turn: TurnId
    attempt: int
    scores: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCompleted:
    """The accepted answer, with the exact window the model saw and who took part.

    `extends` names the turn whose window and output this prompt begins with; `prompt_delta` are the ids after
    it. None means that `prompt_delta` is the whole window.
    """

    name: ClassVar = "turn.completed"
    turn: TurnId
    attempt: int
    item: ItemId
    text: str
    finish_reason: str
    extends: TurnId | None
    prompt_delta: tuple[int, ...]
    output: tuple[int, ...]
    prompt_tokens: int
    local_tokens: int
    kv_source: KvSource
    kv_reason: str
    requested_revision: RevisionDigest
    engine: BootId
    engine_revision: RevisionDigest
    loaded: Loaded | None
    published: ArtifactId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    name: ClassVar = "turn.failed"
    turn: TurnId
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationErased:
    """The tombstone: what was said before it is gone for good, and nothing follows it."""

    name: ClassVar = "conversation.erased"
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMoved:
    name: ClassVar = "alias.moved"
    alias: str
    revision: RevisionDigest
    previous: RevisionDigest | None
    by: str
    on_upgrade: OnUpgrade | None = None
    """The alias's policy from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRegistered:
    name: ClassVar = "engine.registered"
    boot: BootId
    revision: RevisionDigest
    address: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterServed:
    """The engine answers requests for `model` under `revision`, which is its base with this adapter in it."""

    name: ClassVar = "adapter.served"
    boot: BootId
    model: str
    adapter: str
    """Digest of its bytes."""
    revision: RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWithdrawn:
    """The engine goes on without it."""

    name: ClassVar = "adapter.withdrawn"
    boot: BootId
    model: str
    revision: RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractApproved:
    name: ClassVar = "contract.approved"
    contract: ContractId
    terms: Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRevoked:
    name: ClassVar = "contract.revoked"
    contract: ContractId
    by: str


ConversationEvent = (
    ConversationCreated
    | ConversationForked
    | ConversationUpdated
    | ConversationDeleted
    | MessageAccepted
    | ItemDeleted
    | ResponseDeleted
    | TurnStarted
    | TurnPinned
    | KvRefused
    | KvRebuilt
    | AttemptFailed
    | TurnStreamed
    | TurnScored
    | TurnCompleted
    | TurnFailed
    | ConversationErased
)
FleetEvent = (
    AliasMoved
    | EngineRegistered
    | AdapterServed
    | AdapterWithdrawn
    | ContractApproved
    | ContractRevoked
    | RolloutStarted
    | RolloutMove
)
Event = ConversationEvent | FleetEvent
