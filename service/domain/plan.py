"""`plan_turn`: where and how a turn runs, and why; pure policy over what is known of fleet and artifacts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256

from service.domain.artifact import ArtifactId, BootId
from service.domain.contract import Contract, ContractId
from service.domain.events import OnUpgrade, PlanKind, PolicyLevel
from service.domain.revision import RevisionDigest


class EngineState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class EngineRole(StrEnum):
    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class RebuildQueue(StrEnum):
    INTERACTIVE = "interactive"
    """A turn waits for it."""
    BACKGROUND = "background"
    """Warm-up: nobody waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One revision that one boot serves: an engine with adapters stands in a fleet once for each."""

    boot: BootId
    revision: RevisionDigest
    address: str
    role: EngineRole
    state: EngineState
    load: int = 0
    """Attempts that the service has running on it, whatever they ask it for."""
    model: str | None = None
    """What requests call the adapter by that makes this revision of it; None for the engine's base."""
    requests: int | None = None
    """That it has not answered yet, whoever sent them, as it told at its last heartbeat; None from one that does not tell."""

    @property
    def busy(self) -> int:
        """For work that can wait: by the service's count, or by the engine's own where that is more."""
        return max(self.load, self.requests or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """What the service remembers of an artifact of this conversation; the consumer checks the thing itself."""

    artifact: ArtifactId
    revision: RevisionDigest
    producer: BootId
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The conversation so far. `revision` is that of its last completed turn; None for a first turn."""

    revision: RevisionDigest | None
    tokens: int
    same_text: bool
    """Whether the target's text identity is the last turn's, so that stored ids may be extended."""
    append_only: bool = True
    """Whether, as far as is known, the target's template leaves earlier answers as they were generated."""
    engine: BootId | None = None
    """That generated the last answer: while it lives its own cache holds the conversation's KV."""
    new_tokens: int = 0
    """That the next prompt adds at most."""
    same_frame: bool = True
    """Whether the turn has the instructions and tools of the last one: with others its prompt begins otherwise than the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """A rebuild on the target that a worker is at, and that no turn waits for yet."""

    tokens_total: int
    """Of the history as it was when the rebuild was asked for."""
    tokens_done: int


WAY_SHARE = 10
"""The way over the queue adds this part of the prefill of `rebuild_min_tokens`, by how that number is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How one of several engines of a revision is chosen."""

    local_slack: int = 4
    """So many attempts more than the least loaded engine may the one with the conversation's KV run, and still be chosen."""
    split_min_tokens: int = 512
    """A prompt with fewer tokens whose KV is nowhere at hand is not worth a prefill engine's time and the way over the store."""


DEFAULT_ROUTING = Routing()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    kind: PlanKind
    reason: str
    revision: RevisionDigest
    engine: Engine | None = None
    offer: ArtifactId | None = None
    carry_tokens: bool = True
    contract: ContractId | None = None
    """By which the offer may be of another revision; the consumer judges it by itself."""
    prefill: Engine | None = None
    """Of the same revision: computes the prompt's KV for `engine`, if the prompt turns out to be long enough."""
    at_hand_tokens: int = 0
    """Of the history: `engine` is offered their KV, or should have it in its own cache."""


def resolve_policy(
    *,
    turn: OnUpgrade | None,
    conversation: OnUpgrade | None,
    alias: OnUpgrade | None,
    tenant: OnUpgrade | None,
) -> tuple[OnUpgrade, PolicyLevel]:
    """Most specific wins; the level that decided goes into the record."""
    for choice, level in (
        (turn, PolicyLevel.TURN),
        (conversation, PolicyLevel.CONVERSATION),
        (alias, PolicyLevel.ALIAS),
        (tenant, PolicyLevel.TENANT),
    ):
        if choice is not None:
            return choice, level
    return OnUpgrade.REPLAY, PolicyLevel.DEFAULT


def plan_turn(
    *,
    history: History,
    target: RevisionDigest,
    policy: OnUpgrade,
    fleet: Sequence[Engine],
    artifacts: Sequence[StoredArtifact],
    rebuild_min_tokens: int,
    contracts: Sequence[Contract] = (),
    avoid: Collection[BootId] = (),
    routing: Routing = DEFAULT_ROUTING,
    warm_up: WarmUp | None = None,
) -> TurnPlan:
    """What comes of what is listed in docs/plans.md.

    `target` is the revision that the conversation's alias points at now; `artifacts` are those of this conversation that were not
    refused, newest first. A history of fewer than `rebuild_min_tokens` is prefilled where it is decoded, which is quicker than a
    queue hop, unless a `warm_up` is so far with it that it will be done sooner. Engines to `avoid` failed this turn a moment ago: they serve their revision, so the policy holds, and are not picked.
    """
    asked = _Asked(
        history=history,
        target=target,
        policy=policy,
        fleet=fleet,
        able=[e for e in fleet if e.boot not in avoid],
        artifacts=artifacts,
        contracts=contracts,
        routing=routing,
    )
    return _split(asked, _stay(asked) or _on_target(asked, rebuild_min_tokens, warm_up))


def worth_joining(warm_up: WarmUp, *, tokens: int, rebuild_min_tokens: int) -> bool:
    """Whether what is left of it is likely to be done before so many tokens are prefilled on the spot.

    Of what its worker is at, half is done on average when a turn comes. Where it has only begun, the turn waits longer than it would have
    taken by itself by the way over the queue, and never by more.
    """
    left = (warm_up.tokens_total - warm_up.tokens_done) / 2
    return warm_up.tokens_total == tokens and left + rebuild_min_tokens / WAY_SHARE < tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    history: History
    target: RevisionDigest
    policy: OnUpgrade
    fleet: Sequence[Engine]
    able: Sequence[Engine]
    """Without those that failed the turn."""
    artifacts: Sequence[StoredArtifact]
    contracts: Sequence[Contract]
    routing: Routing

    def pick(self, revision: RevisionDigest) -> Engine | None:
        home = self.history.engine if revision == self.history.revision else self._maker(revision)
        return pick_decode(self.able, revision, home=home, routing=self.routing)

    def _maker(self, revision: RevisionDigest) -> BootId | None:
        """Of the longest KV of a revision that has not answered yet, after a warm-up for one: it may still have that in memory."""
        own = (a for a in self.artifacts if a.revision == revision)
        best = max(own, key=lambda a: a.tokens, default=None)
        return None if best is None else best.producer

    def offered(self, plan: TurnPlan) -> TurnPlan:
        """With the longest artifact of the plan's revision, else of one that a contract lets it read; else as it is."""
        own = [a for a in self.artifacts if a.revision == plan.revision]
        if own:
            best = max(own, key=lambda a: a.tokens)
            return replace(plan, offer=best.artifact, at_hand_tokens=best.tokens)
        permitted = {c.producer: c for c in self.contracts if c.reader == plan.revision}
        foreign = [a for a in self.artifacts if a.revision in permitted]
        if not foreign:
            return plan
        best = max(foreign, key=lambda a: a.tokens)
        contract = permitted[best.revision].id
        return replace(
            plan,
            reason=f"KV of {best.revision} may be read under contract {contract}",
            offer=best.artifact,
            at_hand_tokens=best.tokens,
            contract=contract,
        )


def _stay(asked: _Asked) -> TurnPlan | None:
    """None where the conversation goes on with the target: nothing holds it, or the old revision is gone."""
    current, policy = asked.history.revision, asked.policy
    if current is None or current == asked.target or policy is OnUpgrade.REPLAY:
        return None
    engine = asked.pick(current)
    if engine is not None:
        reason = f"on_upgrade is {policy}"
        plan = asked.offered(TurnPlan(kind=PlanKind.STAY, reason=reason, revision=current, engine=engine))
        return plan if plan.offer else replace(plan, reason=f"{reason}; no stored KV")
    if pick_decode(asked.fleet, current) is not None:
        reason = f"on_upgrade is {policy}, and the engines of {current} have just failed this turn"
        return TurnPlan(kind=PlanKind.WAIT, reason=reason, revision=current)
    if policy is OnUpgrade.STAY_STRICT:
        way_out = "start one, or ask with on_upgrade 'replay'"
        reason = f"on_upgrade is stay_strict and no engine serves {current}: {way_out}"
        return TurnPlan(kind=PlanKind.REFUSE, reason=reason, revision=current)
    return None


def _on_target(asked: _Asked, rebuild_min_tokens: int, warm_up: WarmUp | None) -> TurnPlan:
    history, target, current = asked.history, asked.target, asked.history.revision
    engine = asked.pick(target)
    if engine is None:
        reason = f"no ready engine serves {target}{_why_none(asked.fleet, target)}"
        return TurnPlan(kind=PlanKind.WAIT, reason=reason, revision=target, carry_tokens=history.same_text)
    upgraded = current is not None and current != target
    reason = "KV of the target revision is at hand" if upgraded else "same revision"
    plan = asked.offered(TurnPlan(kind=PlanKind.REUSE, reason=reason, revision=target, engine=engine))
    if current is not None and not (history.same_text and history.append_only):
        return _rendered_anew(plan, history)
    if plan.offer is not None:
        return plan
    if not upgraded:
        return replace(plan, kind=PlanKind.COLD, reason=f"{reason}; no stored KV")
    if not history.same_frame:
        reason = f"revision changed from {current}, and instructions or tools are others: all of the prompt is prefilled on the spot"
        return replace(plan, kind=PlanKind.FULL_RENDER, reason=reason, carry_tokens=False)
    if history.tokens < rebuild_min_tokens:
        tokens = history.tokens
        if warm_up and worth_joining(warm_up, tokens=tokens, rebuild_min_tokens=rebuild_min_tokens):
            reason = f"revision changed from {current}: a warm-up is at its {tokens} tokens"
            return replace(plan, kind=PlanKind.REBUILD, reason=reason)
        reason = f"revision changed; {history.tokens} tokens are prefilled on the spot"
        return replace(plan, kind=PlanKind.COLD, reason=reason)
    reason = f"revision changed from {current}: replay {history.tokens} tokens"
    offer = asked.artifacts[0].artifact if asked.artifacts else None
    return replace(plan, kind=PlanKind.REBUILD, reason=reason, offer=offer)


def _rendered_anew(plan: TurnPlan, history: History) -> TurnPlan:
    """What is offered may still begin as the new prompt does: its reader compares token for token."""
    if history.same_text:
        reason = f"the template of {plan.revision} rewrites earlier answers: history is rendered anew where it does"
    else:
        reason = "the text identity differs: history is rendered anew from its messages"
    if plan.contract is not None:
        reason = f"{reason}; {plan.reason}"
    return replace(plan, kind=PlanKind.FULL_RENDER, reason=reason, carry_tokens=history.same_text)


def _why_none(fleet: Sequence[Engine], revision: RevisionDigest) -> str:
    theirs = [e for e in fleet if e.revision == revision]
    if pick_decode(theirs, revision) is not None:
        return ": those there are have just failed this turn"
    if any(e.state is EngineState.READY for e in theirs):
        return ": those there are only prefill"
    return ": those there are drain" if any(e.state is EngineState.DRAINING for e in theirs) else ""


def _split(asked: _Asked, plan: TurnPlan) -> TurnPlan:
    """Prefill and decode on two engines of one revision, where it has engines that do nothing but prefill.

    Not under a contract: KV that was computed on another revision's would be published as this one's own.
    """
    if plan.engine is None or plan.contract is not None:
        return plan
    history, routing = asked.history, asked.routing
    at_home = (plan.engine.boot, plan.revision) == (history.engine, history.revision)
    at_hand = history.tokens if at_home else plan.at_hand_tokens
    if history.tokens - at_hand + history.new_tokens < routing.split_min_tokens:
        return plan
    only = (e for e in asked.able if e.revision == plan.revision and e.role is EngineRole.PREFILL)
    return replace(plan, prefill=_least_loaded(only), at_hand_tokens=at_hand)


def pick_prefill(fleet: Sequence[Engine], revision: RevisionDigest, *, rebuild: str = "") -> Engine | None:
    """For a rebuild: the least busy, by the engines' own count too, which knows of other rebuilds.

    Of those that are equally so another for each rebuild: many begin between two heartbeats.
    """
    able = (e for e in fleet if e.revision == revision and e.role is not EngineRole.DECODE)
    ready = (e for e in able if e.state is EngineState.READY)

    def place(engine: Engine) -> bytes:
        return sha256(f"{rebuild}\0{engine.boot}".encode("utf-8", "surrogatepass")).digest()

    return min(ready, key=lambda e: (e.busy, e.load, place(e), e.model or ""), default=None)


def pick_decode(
    fleet: Sequence[Engine],
    revision: RevisionDigest,
    *,
    home: BootId | None = None,
    routing: Routing = DEFAULT_ROUTING,
) -> Engine | None:
    """`home`, which holds the conversation's KV, unless it is much busier than another; then the least loaded."""
    serving = [e for e in fleet if e.revision == revision and e.role is not EngineRole.PREFILL]
    least = _least_loaded(serving)
    holder = _least_loaded(e for e in serving if e.boot == home)
    if least is None or holder is None:
        return least
    return holder if holder.load - least.load <= routing.local_slack else least


def _least_loaded(engines: Iterable[Engine]) -> Engine | None:
    ready = (e for e in engines if e.state is EngineState.READY)
    return min(ready, key=lambda e: (e.load, e.boot, e.model or ""), default=None)
