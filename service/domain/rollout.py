"""A rollout: one table of transitions, and the pure decision which step comes next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Self

from service.domain.artifact import BootId
from service.domain.errors import Conflict, Internal, InvalidInput
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import (
    ITSELF,
    Drain,
    RolloutAborted,
    RolloutDone,
    RolloutId,
    RolloutMove,
    RolloutPaused,
    RolloutResumed,
    RolloutRolledBack,
    RolloutStarted,
    RolloutState,
    RolloutStepped,
    Strategy,
)

_PLANNED, _WARMING, _SHIFTING = RolloutState.PLANNED, RolloutState.WARMING, RolloutState.SHIFTING
_DRAINING, _DONE, _PAUSED = RolloutState.DRAINING, RolloutState.DONE, RolloutState.PAUSED
_ABORTED, _ROLLED_BACK = RolloutState.ABORTED, RolloutState.ROLLED_BACK

TRANSITIONS: dict[tuple[RolloutState, str], frozenset[RolloutState]] = {
    (_PLANNED, RolloutStepped.name): frozenset({_WARMING, _SHIFTING}),
    (_PLANNED, RolloutPaused.name): frozenset({_PAUSED}),
    (_PLANNED, RolloutAborted.name): frozenset({_ABORTED}),
    (_WARMING, RolloutStepped.name): frozenset({_SHIFTING}),
    (_WARMING, RolloutPaused.name): frozenset({_PAUSED}),
    (_WARMING, RolloutAborted.name): frozenset({_ABORTED}),
    (_SHIFTING, RolloutStepped.name): frozenset({_SHIFTING, _DRAINING}),
    (_SHIFTING, RolloutPaused.name): frozenset({_PAUSED}),
    (_SHIFTING, RolloutAborted.name): frozenset({_ABORTED}),
    (_SHIFTING, RolloutRolledBack.name): frozenset({_ROLLED_BACK}),
    (_SHIFTING, RolloutDone.name): frozenset({_DONE}),
    (_DRAINING, RolloutPaused.name): frozenset({_PAUSED}),
    (_DRAINING, RolloutAborted.name): frozenset({_ABORTED}),
    (_DRAINING, RolloutRolledBack.name): frozenset({_ROLLED_BACK}),
    (_DRAINING, RolloutDone.name): frozenset({_DONE}),
    (_PAUSED, RolloutResumed.name): frozenset({_PLANNED, _WARMING, _SHIFTING, _DRAINING}),
    (_PAUSED, RolloutAborted.name): frozenset({_ABORTED}),
    (_PAUSED, RolloutRolledBack.name): frozenset({_ROLLED_BACK}),
    (_DONE, RolloutRolledBack.name): frozenset({_ROLLED_BACK}),
}
"""To which states an event may lead. Only grows: what a stored history once did must stay foldable."""

ACTIVE = frozenset({_PLANNED, _WARMING, _SHIFTING, _DRAINING, _PAUSED})
"""An alias has one rollout in these at most."""
ALL = 100
LONGEST_HOLD_S = int(timedelta(days=30).total_seconds())
MOST_WARM = 100_000
MOST_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    id: RolloutId
    alias: str
    source: RevisionDigest
    target: RevisionDigest
    strategy: Strategy
    back_of: RolloutId | None
    state: RolloutState
    held: RolloutState
    """Where it goes on when it is resumed; its state while it is not paused."""
    step: int = 0
    percent: int = 0
    drained: tuple[BootId, ...] = ()

    @classmethod
    def of(cls, event: RolloutStarted) -> Self:
        return cls(
            id=event.rollout,
            alias=event.alias,
            source=event.source,
            target=event.target,
            strategy=event.strategy,
            back_of=event.back_of,
            state=_PLANNED,
            held=_PLANNED,
        )

    @property
    def alias_moved(self) -> bool:
        return self.percent == ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a turn's plan has to know of the rollout that its alias is in."""

    rollout: RolloutId
    step: int
    percent: int
    source: RevisionDigest
    target: RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """What went wrong on the target, since the rollout started or was last resumed."""

    refusals: int = 0
    """Of KV, for another reason than that it is of another revision."""
    failed_attempts: int = 0
    failed_rebuilds: int = 0
    failed_canaries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    now: datetime
    since: datetime
    """When the last step was made, or the rollout resumed."""
    serving: bool
    """Whether a ready engine decodes under the target."""
    warming: int
    """Conversations still to be warmed, or being warmed."""
    least_load: int | None
    """Requests that the least busy engine that can prefill for the target has under way; None where there is none."""
    troubles: Troubles
    strict: int
    """Conversations that are `stay_strict` on the source."""
    shared_by: tuple[str, ...]
    """Other aliases that need the source's engines."""
    drainable: tuple[BootId, ...]
    """Ready engines that serve the source, and nothing that an alias needs."""
    draining: int
    """Attempts that still run on engines that the rollout set draining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    reason: str


def target_of(alias: RevisionDigest, route: Route | None, conversation: str) -> RevisionDigest:
    """Args: alias: what the alias itself points at. A conversation that a step has moved stays moved at the next."""
    if route is None or route.percent == 0:
        return alias
    return route.target if place_of(route.rollout, conversation) < route.percent else route.source


def place_of(rollout: RolloutId, conversation: str) -> float:
    """From 0 to below 100, evenly; another for each rollout, so that not always the same are first."""
    digest = sha256(f"{rollout}\0{conversation}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) / 2**64 * ALL


def check_strategy(strategy: Strategy) -> None:
    """Raises: InvalidInput: naming the field."""
    percents = [share.percent for share in strategy.shift]
    rising = all(later > earlier for earlier, later in zip([0, *percents], percents, strict=False))
    if not percents or not rising or percents[-1] != ALL or len(percents) > MOST_STEPS:
        raise InvalidInput(
            f"'shift' must be up to {MOST_STEPS} rising percentages that end with 100, such as [10, 50, 100].",
            "shift",
        )
    if not all(0 <= share.hold_s <= LONGEST_HOLD_S for share in strategy.shift):
        raise InvalidInput(f"'hold_s' must be from 0 to {LONGEST_HOLD_S} seconds.", "hold_s")
    if not 0 <= strategy.warm <= MOST_WARM:
        raise InvalidInput(f"'warm' must be from 0 to {MOST_WARM} conversations.", "warm")
    if strategy.warm_tokens_per_s is not None and strategy.warm_tokens_per_s < 1:
        raise InvalidInput("'warm_tokens_per_s' must be at least 1, or left out.", "warm_tokens_per_s")
    limits = strategy.limits
    if strategy.max_engine_load is not None and strategy.max_engine_load < 0:
        raise InvalidInput("'max_engine_load' must be at least 0 requests, or left out.", "max_engine_load")
    counts = (limits.refusals, limits.failed_attempts, limits.failed_rebuilds, limits.failed_canaries)
    if min(counts) < 0:
        raise InvalidInput("The limits at which a rollout pauses must not be negative.", "limits")


def check(rollout: Rollout, event: RolloutMove) -> None:
    """Raises: Conflict: the rollout is where this cannot happen; says what can."""
    allowed = TRANSITIONS.get((rollout.state, event.name), frozenset())
    if allowed and _state_after(rollout, event) in allowed:
        return
    ways = sorted(name.removeprefix("rollout.") for state, name in TRANSITIONS if state is rollout.state)
    raise Conflict(
        f"Rollout {rollout.id} is {rollout.state}: '{event.name}' cannot follow"
        + (f", only: {', '.join(ways)}." if ways else "; it has ended, start another.")
    )


def advance(rollout: Rollout, event: RolloutMove) -> Rollout:
    after = _state_after(rollout, event)
    if after not in TRANSITIONS.get((rollout.state, event.name), ()):
        raise Internal(f"A stored history has '{event.name}' on rollout {rollout.id} while {rollout.state}.")
    if isinstance(event, RolloutStepped):
        drained = (*rollout.drained, *event.engines)
        return replace(
            rollout, state=after, held=after, step=event.step, percent=event.percent, drained=drained
        )
    held = rollout.held if after is _PAUSED else after
    return replace(rollout, state=after, held=held)


def fold(events: Sequence[object]) -> Rollout:
    """Raises: Internal: not the history of one rollout."""
    first, *moves = events
    if not isinstance(first, RolloutStarted):
        raise Internal("The history of a rollout does not begin with its start.")
    rollout = Rollout.of(first)
    for event in moves:
        if not isinstance(event, RolloutMove):
            raise Internal(f"The history of rollout {rollout.id} holds an event of something else.")
        rollout = advance(rollout, event)
    return rollout


def _state_after(rollout: Rollout, event: RolloutMove) -> RolloutState:
    match event:
        case RolloutStepped():
            return event.state
        case RolloutPaused():
            return _PAUSED
        case RolloutResumed():
            return rollout.held
        case RolloutAborted():
            return _ABORTED
        case RolloutRolledBack():
            return _ROLLED_BACK
        case RolloutDone():
            return _DONE


def next_move(rollout: Rollout, facts: Facts) -> RolloutMove | Waiting:
    """What the rollout does by itself now, or what it waits for."""
    if rollout.state not in ACTIVE:
        return Waiting(reason=f"it is {rollout.state}")
    if rollout.state is _PAUSED:
        return Waiting(reason="it is paused: resume, abort or roll it back")
    if (passed := passed_limit(rollout.strategy, facts.troubles)) is not None:
        return RolloutPaused(rollout=rollout.id, by=ITSELF, reason=passed)
    if rollout.state is _DRAINING:
        return _after_drain(rollout, facts)
    return _after_shift(rollout, facts) if rollout.alias_moved else _towards_shift(rollout, facts)


def _towards_shift(rollout: Rollout, facts: Facts) -> RolloutMove | Waiting:
    if not facts.serving:
        return Waiting(reason=f"no ready engine serves {rollout.target}")
    if rollout.state is _PLANNED and rollout.strategy.warm > 0:
        return _stepped(rollout, _WARMING, 0, f"warm up to {rollout.strategy.warm} conversations")
    if rollout.state is _WARMING and facts.warming > 0:
        held = held_back(rollout, facts)
        left = f"{facts.warming} conversations are still to be warmed"
        return Waiting(reason=left if held is None else f"{left}; held back: {held}")
    if rollout.state is _SHIFTING and (waiting := _held(rollout, facts)) is not None:
        return waiting
    percent = next(share.percent for share in rollout.strategy.shift if share.percent > rollout.percent)
    return _stepped(rollout, _SHIFTING, percent, f"{percent} percent of the conversations")


def _after_drain(rollout: Rollout, facts: Facts) -> RolloutMove | Waiting:
    if facts.draining:
        return Waiting(reason=f"{facts.draining} attempts still run on engines that drain")
    return RolloutDone(rollout=rollout.id, by=ITSELF, reason="the engines of before have drained")


def held_back(rollout: Rollout, facts: Facts) -> str | None:
    """Why nothing more is to be warmed at this moment."""
    most = rollout.strategy.max_engine_load
    if most is None or facts.least_load is None or facts.least_load <= most:
        return None
    return f"the least busy engine of {rollout.target} has {facts.least_load} requests under way, more than {most}"


def passed_limit(strategy: Strategy, troubles: Troubles) -> str | None:
    """Which number passed which limit."""
    for what, count, limit in (
        ("refusals of KV", troubles.refusals, strategy.limits.refusals),
        ("failed attempts", troubles.failed_attempts, strategy.limits.failed_attempts),
        ("failed rebuilds", troubles.failed_rebuilds, strategy.limits.failed_rebuilds),
        ("failed canaries", troubles.failed_canaries, strategy.limits.failed_canaries),
    ):
        if count > limit:
            return f"{count} {what} on the target, more than the limit of {limit}"
    return None


def _held(rollout: Rollout, facts: Facts) -> Waiting | None:
    hold_s = next(share.hold_s for share in rollout.strategy.shift if share.percent == rollout.percent)
    left_s = hold_s - (facts.now - facts.since).total_seconds()
    if left_s <= 0:
        return None
    return Waiting(reason=f"{rollout.percent} percent is held for another {left_s:.0f} s")


def _after_shift(rollout: Rollout, facts: Facts) -> RolloutMove | Waiting:
    if (waiting := _held(rollout, facts)) is not None:
        return waiting
    drain = rollout.strategy.drain
    kept = None
    if drain is Drain.NEVER:
        kept = "as asked"
    elif facts.shared_by:
        kept = f"other aliases need them: {', '.join(facts.shared_by)}"
    elif facts.strict and drain is not Drain.ALWAYS:
        kept = f"{facts.strict} conversations are stay_strict on {rollout.source}"
    elif not facts.drainable:
        kept = "there is none that serves only it"
    if kept is None:
        reason = f"engines of {rollout.source} get no new attempts"
        return _stepped(rollout, _DRAINING, ALL, reason, facts.drainable)
    return RolloutDone(
        rollout=rollout.id,
        by=ITSELF,
        reason=f"all conversations moved; engines of before not drained, {kept}",
    )


def _stepped(
    rollout: Rollout, state: RolloutState, percent: int, reason: str, engines: tuple[BootId, ...] = ()
) -> RolloutStepped:
    return RolloutStepped(
        rollout=rollout.id,
        step=rollout.step + 1,
        state=state,
        percent=percent,
        engines=engines,
        by=ITSELF,
        reason=reason,
    )
