"""A rollout of the tests' own, and what it may find."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from service.domain.artifact import BootId
from service.domain.revision import RevisionDigest
from service.domain.rollout import Facts, Rollout, Troubles, advance
from service.domain.rollout_events import (
    Drain,
    Limits,
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
    Share,
    Strategy,
)

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
V12, V13 = RevisionDigest("rev_" + "12" * 32), RevisionDigest("rev_" + "13" * 32)
ID = RolloutId("ro_1")
OLD = BootId("boot_old")
STRATEGY = Strategy(
    warm=10,
    warm_tokens_per_s=None,
    shift=(Share(percent=10, hold_s=60), Share(percent=50, hold_s=60), Share(percent=100, hold_s=30)),
    drain=Drain.UNPINNED,
    limits=Limits(refusals=2, failed_attempts=2, failed_rebuilds=2),
)
CALM = Facts(
    now=NOW,
    since=NOW,
    serving=True,
    warming=0,
    least_load=0,
    troubles=Troubles(),
    strict=0,
    shared_by=(),
    drainable=(OLD,),
    draining=0,
)


def started(**strategy: Any) -> RolloutStarted:
    return RolloutStarted(
        rollout=ID,
        alias="production",
        source=V12,
        target=V13,
        strategy=replace(STRATEGY, **strategy),
        by="ada",
        reason="better",
    )


def stepped(state: RolloutState, percent: int = 0, *engines: BootId) -> RolloutStepped:
    return RolloutStepped(
        rollout=ID, step=1, state=state, percent=percent, engines=engines, by="everturn", reason="next"
    )


PAUSED = RolloutPaused(rollout=ID, by="ada", reason="lunch")
RESUMED = RolloutResumed(rollout=ID, by="ada", reason="fed")
ABORTED = RolloutAborted(rollout=ID, by="ada", reason="wrong")
BACK = RolloutRolledBack(rollout=ID, successor=RolloutId("ro_2"), by="ada", reason="worse")
DONE = RolloutDone(rollout=ID, by="everturn", reason="moved")


def rollout(*moves: RolloutMove, **strategy: Any) -> Rollout:
    state = Rollout.of(started(**strategy))
    for move in moves:
        state = advance(state, move)
    return state
