"""`plan_turn`: where and how a turn runs, and why; pure policy over what is known of fleet and artifacts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

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
) -> TurnPlan:
    """Args:
    target: the revision that the conversation's alias points at now.
    artifacts: those of this conversation that were not refused, newest first.
    rebuild_min_tokens: below it the decode engine prefills by itself, which is quicker than a queue hop.
    contracts: those in force.
    avoid: engines that failed this turn a moment ago: they still serve their revision, so the policy holds, and are not picked.
    """
    able = [e for e in fleet if e.boot not in avoid]
    current = history.revision
    upgraded = current is not None and current != target
    if current is not None and upgraded and policy is not OnUpgrade.REPLAY:
        if _pick(able, current) is None and _pick(fleet, current) is not None:
            reason = f"on_upgrade is {policy}, and the engines of {current} have just failed this turn"
            return TurnPlan(kind=PlanKind.WAIT, reason=reason, revision=current)
        if stay := _stay(current, policy, able, artifacts, contracts):
            return stay
    engine = _pick(able, target)
    if engine is None:
        reason = f"no ready engine serves {target}"
        return TurnPlan(kind=PlanKind.WAIT, reason=reason, revision=target, carry_tokens=history.same_text)
    contracted = _contracted(target, artifacts, contracts)
    if not history.same_text:
        if contracted is not None:
            return replace(_offer_of_another(engine, *contracted), carry_tokens=False)
        reason = "the text identity differs: history is rendered anew from its messages"
        return TurnPlan(kind=PlanKind.COLD, reason=reason, revision=target, engine=engine, carry_tokens=False)
    if not upgraded or any(a.revision == target for a in artifacts):
        reason = "same revision" if not upgraded else "KV of the target revision is at hand"
        return _decode(PlanKind.REUSE, reason, engine, artifacts, contracts)
    if contracted is not None:
        return _offer_of_another(engine, *contracted)
    if history.tokens < rebuild_min_tokens:
        reason = f"revision changed; {history.tokens} tokens are prefilled on the spot"
        return TurnPlan(kind=PlanKind.COLD, reason=reason, revision=target, engine=engine)
    reason = f"revision changed from {current}: replay {history.tokens} tokens"
    offer = artifacts[0].artifact if artifacts else None
    return TurnPlan(kind=PlanKind.REBUILD, reason=reason, revision=target, engine=engine, offer=offer)


def _stay(
    current: RevisionDigest,
    policy: OnUpgrade,
    fleet: Sequence[Engine],
    artifacts: Sequence[StoredArtifact],
    contracts: Sequence[Contract],
) -> TurnPlan | None:
    """None where the old revision is gone and the policy allows to leave it."""
    if engine := _pick(fleet, current):
        return _decode(PlanKind.STAY, f"on_upgrade is {policy}", engine, artifacts, contracts)
    if policy is OnUpgrade.STAY_STRICT:
        reason = f"on_upgrade is stay_strict and no engine serves {current}"
        return TurnPlan(kind=PlanKind.REFUSE, reason=reason, revision=current)
    return None


def pick_prefill(fleet: Sequence[Engine], revision: RevisionDigest) -> Engine | None:
    return _least_loaded(e for e in fleet if e.revision == revision and e.role is not EngineRole.DECODE)


def _pick(fleet: Sequence[Engine], revision: RevisionDigest) -> Engine | None:
    return _least_loaded(e for e in fleet if e.revision == revision and e.role is not EngineRole.PREFILL)


def _least_loaded(engines: Iterable[Engine]) -> Engine | None:
    ready = (e for e in engines if e.state is EngineState.READY)
    return min(ready, key=lambda e: (e.load, e.boot, e.model or ""), default=None)


def _decode(
    kind: PlanKind,
    reason: str,
    engine: Engine,
    artifacts: Sequence[StoredArtifact],
    contracts: Sequence[Contract],
) -> TurnPlan:
    """Offer the longest artifact of the revision; a history without one is prefilled where it is decoded."""
    revision = engine.revision
    usable = [a for a in artifacts if a.revision == revision]
    if not usable:
        contracted = _contracted(revision, artifacts, contracts)
        if contracted is not None:
            return replace(_offer_of_another(engine, *contracted), kind=kind)
        kind = PlanKind.COLD if kind is PlanKind.REUSE else kind
        return TurnPlan(kind=kind, reason=f"{reason}; no stored KV", revision=revision, engine=engine)
    best = max(usable, key=lambda a: a.tokens)
    return TurnPlan(kind=kind, reason=reason, revision=revision, engine=engine, offer=best.artifact)


def _contracted(
    revision: RevisionDigest, artifacts: Sequence[StoredArtifact], contracts: Sequence[Contract]
) -> tuple[StoredArtifact, Contract] | None:
    """The longest artifact that a contract lets `revision` read."""
    permitted = {c.producer: c for c in contracts if c.reader == revision}
    foreign = [a for a in artifacts if a.revision in permitted]
    if not foreign:
        return None
    best = max(foreign, key=lambda a: a.tokens)
    return best, permitted[best.revision]


def _offer_of_another(engine: Engine, artifact: StoredArtifact, contract: Contract) -> TurnPlan:
    return TurnPlan(
        kind=PlanKind.REUSE,
        reason=f"KV of {artifact.revision} may be read under contract {contract.id}",
        revision=engine.revision,
        engine=engine,
        offer=artifact.artifact,
        contract=contract.id,
    )
