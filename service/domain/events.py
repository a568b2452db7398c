"""The facts of a conversation, an alias and an engine, under explicit stored names; the only truth there is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NewType

from service.domain.artifact import ArtifactId, BootId
from service.domain.canary import CanaryFailed, CanaryForgotten, CanaryRecorded
from service.domain.contract import ContractId
from service.domain.evidence import Loaded, Refusal
from service.domain.fleet_events import FleetFact
from service.domain.items import CallId, Part
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId, RolloutMove, RolloutStarted
from service.domain.scores import TokenLogprob
from service.domain.terms import Terms

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
    TOOL = "tool"
    """Of what a function gave back."""


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
    FULL_RENDER = "full_render"
    """The history's tokens are not those of the last prompt: it is rendered anew from its messages, where they differ."""
    WAIT = "wait"
    REFUSE = "refuse"


class KvSource(StrEnum):
    NONE = "none"
    REUSED = "reused"
    REBUILT = "rebuilt"
    PREFILLED = "prefilled"
    """For this turn, by another engine of the revision, which does nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    max_output_tokens: int | None
    """None for as many as the model's context has room for."""
    temperature: float
    top_p: float
    top_logprobs: int | None = None
    """Whether log-probabilities are asked for, and of how many other candidates for each token."""


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
class FunctionCallAccepted:
    """A call that the client says the model made."""

    name: ClassVar = "function_call.accepted"
    item: ItemId
    call: CallId
    function: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCallOutputAccepted:
    name: ClassVar = "function_call_output.accepted"
    item: ItemId
    call: CallId
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningAccepted:
    """Reasoning that the client says the model gave."""

    name: ClassVar = "reasoning.accepted"
    item: ItemId
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
    """What the caller gave as instructions, where the conversation begins with it. Of turns that earlier versions opened one with it is
    among `items`; all others have theirs in `TurnAsked`."""
    revision: RevisionDigest | None = None
    """The only one that may answer, where the client named one."""
    truncate: bool = False
    """Whether the oldest items may be left out of a prompt that would not fit the model's context."""
    terms: Terms | None = None
    """None for the usual ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAsked:
    """What the request wants beside words; it holds for this turn alone. The first three are JSON, or empty."""

    name: ClassVar = "turn.asked"
    turn: TurnId
    tools: str
    tool_choice: str
    text_format: str
    instructions: str = ""
    """A system message before all items, where it is not one of them."""
    parallel_tool_calls: bool = True
    labels: str = ""
    """What it says of itself, which changes nothing of the answer and is told back: JSON, or empty."""


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
    prefill: BootId | None = None
    """Of the same revision: computes the prompt's KV for `engine`, if the prompt turns out to be long enough."""
    rebuild: str | None = None
    """That the attempt waits for."""


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
class TurnParsed:
    """The items of the answer, where it is not one message with all of its text."""

    name: ClassVar = "turn.parsed"
    turn: TurnId
    attempt: int
    items: tuple[ItemId, ...]
    parts: tuple[Part, ...]
    """One for each of `items`."""
    reasoning_tokens: int = 0


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
    dropped_items: int = 0
    """The oldest that were left out of this window, so that it fits the model's context."""
    frame: str | None = None
    """Digest of the tools and instructions that stand in the window beside its items; None without any."""


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


ItemAccepted = MessageAccepted | FunctionCallAccepted | FunctionCallOutputAccepted | ReasoningAccepted
ConversationEvent = (
    ConversationCreated
    | ConversationForked
    | ConversationUpdated
    | ConversationDeleted
    | ItemAccepted
    | ItemDeleted
    | ResponseDeleted
    | TurnStarted
    | TurnAsked
    | TurnPinned
    | KvRefused
    | KvRebuilt
    | AttemptFailed
    | TurnStreamed
    | TurnScored
    | TurnParsed
    | TurnCompleted
    | TurnFailed
    | ConversationErased
)
FleetEvent = (
    AliasMoved | FleetFact | CanaryRecorded | CanaryFailed | CanaryForgotten | RolloutStarted | RolloutMove
)
Event = ConversationEvent | FleetEvent
