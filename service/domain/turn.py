"""The life of a turn: one table of transitions, and nothing else decides them."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, assert_never

from service.domain.errors import FenceLost, Internal
from service.domain.events import (
    AttemptFailed,
    ItemId,
    KvRebuilt,
    KvRefused,
    PlanKind,
    Sampling,
    TurnAsked,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.revision import RevisionDigest

TurnEvent = (
    TurnAsked
    | TurnPinned
    | KvRefused
    | KvRebuilt
    | AttemptFailed
    | TurnStreamed
    | TurnScored
    | TurnParsed
    | TurnCompleted
    | TurnFailed
)


class TurnState(StrEnum):
    STARTED = "started"
    PINNED = "pinned"
    COMPLETED = "completed"
    FAILED = "failed"


TRANSITIONS: dict[tuple[TurnState, str], TurnState] = {
    (TurnState.STARTED, TurnAsked.name): TurnState.STARTED,
    (TurnState.STARTED, TurnPinned.name): TurnState.PINNED,
    (TurnState.STARTED, TurnStreamed.name): TurnState.STARTED,
    (TurnState.STARTED, TurnFailed.name): TurnState.FAILED,
    (TurnState.PINNED, KvRefused.name): TurnState.PINNED,
    (TurnState.PINNED, KvRebuilt.name): TurnState.PINNED,
    (TurnState.PINNED, TurnStreamed.name): TurnState.PINNED,
    (TurnState.PINNED, TurnScored.name): TurnState.PINNED,
    (TurnState.PINNED, TurnParsed.name): TurnState.PINNED,
    (TurnState.PINNED, AttemptFailed.name): TurnState.STARTED,
    (TurnState.PINNED, TurnCompleted.name): TurnState.COMPLETED,
}
"""Only grows: what a stored history once did must stay foldable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    id: TurnId
    state: TurnState
    items: tuple[ItemId, ...]
    started: TurnStarted
    asked: TurnAsked | None = None
    attempt: int = 0
    """Number of the last attempt pinned; also its fence."""
    pinned: TurnPinned | None = None
    rebuilds: tuple[TurnPinned, ...] = ()
    """Of the attempts that waited for one."""
    refusals: tuple[KvRefused, ...] = ()
    rebuilt: KvRebuilt | None = None
    left: RevisionDigest | None = None
    """That of the last attempt that failed; None where it still waited for a rebuild, so that nothing was said on it."""
    streamed: TurnStreamed | None = None
    scored: TurnScored | None = None
    parsed: TurnParsed | None = None
    completed: TurnCompleted | None = None
    failed: TurnFailed | None = None

    @classmethod
    def of(cls, event: TurnStarted) -> Self:
        return cls(id=event.turn, state=TurnState.STARTED, items=event.items, started=event)

    @property
    def sampling(self) -> Sampling:
        return self.started.sampling


def check(turn: Turn, event: TurnEvent) -> None:
    """Raises:
    FenceLost: another attempt took over, or the turn has ended.
    """
    if (turn.state, event.name) not in TRANSITIONS:
        raise FenceLost(
            f"Turn {turn.id} is {turn.state}{_holder(turn)}: '{event.name}' comes too late and is not recorded. {_next(turn)}"
        )
    if isinstance(event, TurnPinned):
        if event.attempt != turn.attempt + 1:
            raise FenceLost(
                f"Turn {turn.id} is at attempt {turn.attempt}{_holder(turn)}; {event.attempt} cannot follow it. "
                "Read the turn again and plan anew."
            )
    elif not isinstance(event, TurnAsked | TurnStreamed | TurnFailed) and event.attempt != turn.attempt:
        raise FenceLost(
            f"Turn {turn.id} is at attempt {turn.attempt}{_holder(turn)}; attempt {event.attempt} was fenced off, "
            f"and its '{event.name}' is not recorded. {_next(turn)}"
        )


def check_needs_attempt(turn: Turn) -> None:
    """Raises: FenceLost: it has one, or has ended."""
    if turn.state is not TurnState.STARTED:
        raise FenceLost(
            f"Turn {turn.id} is {turn.state}{_holder(turn)}: it needs no new attempt. {_next(turn)}"
        )


def _holder(turn: Turn) -> str:
    """Who has it, or had it last."""
    if turn.failed is not None:
        return f" ({turn.failed.code})"
    return f" (attempt {turn.attempt} on engine {turn.pinned.engine})" if turn.pinned is not None else ""


def _next(turn: Turn) -> str:
    match turn.state:
        case TurnState.COMPLETED:
            return "The answer that was accepted stands."
        case TurnState.FAILED:
            return "Its client asks anew."
        case TurnState.PINNED:
            return "The attempt that has it goes on."
        case TurnState.STARTED:
            return "Another attempt is planned."
        case _:
            assert_never(turn.state)


def advance(turn: Turn, event: TurnEvent) -> Turn:
    if (turn.state, event.name) not in TRANSITIONS:
        raise Internal(f"A stored history has '{event.name}' on turn {turn.id} while it is {turn.state}.")
    turn = replace(turn, state=TRANSITIONS[turn.state, event.name])
    match event:
        case TurnPinned():
            waits = () if event.rebuild is None else (event,)
            return replace(turn, attempt=event.attempt, pinned=event, rebuilds=(*turn.rebuilds, *waits))
        case KvRefused():
            return replace(turn, refusals=(*turn.refusals, event))
        case AttemptFailed():
            return replace(turn, rebuilt=None, left=_spoken_on(turn))
        case KvRebuilt():
            return replace(turn, rebuilt=event)
        case _:
            return _told(turn, event)


def _spoken_on(turn: Turn) -> RevisionDigest | None:
    pinned = turn.pinned
    if pinned is None or (pinned.plan is PlanKind.REBUILD and turn.rebuilt is None):
        return None
    return pinned.revision


def _told(
    turn: Turn, event: TurnAsked | TurnStreamed | TurnScored | TurnParsed | TurnCompleted | TurnFailed
) -> Turn:
    match event:
        case TurnAsked():
            return replace(turn, asked=event)
        case TurnStreamed():
            return replace(turn, streamed=event)
        case TurnScored():
            return replace(turn, scored=event)
        case TurnParsed():
            return replace(turn, parsed=event)
        case TurnCompleted():
            return replace(turn, completed=event)
        case TurnFailed():
            return replace(turn, failed=event)
