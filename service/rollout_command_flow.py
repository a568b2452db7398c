"""What an operator does with a rollout: start, pause, resume, abort, roll back; one function for each transaction."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service import shift_flow
from service.domain.errors import Conflict, InvalidInput, NotFound
from service.domain.plan import pick_decode
from service.domain.revision import RevisionDigest
from service.domain.rollout import ALL, Rollout, check_strategy
from service.domain.rollout_events import (
    Drain,
    RolloutId,
    RolloutPaused,
    RolloutResumed,
    RolloutRolledBack,
    RolloutStarted,
    RolloutState,
    RolloutStepped,
    Share,
    Strategy,
)
from service.store import fleet, rollouts
from service.store.rollouts import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    alias: str
    source: RevisionDigest | None
    """What the alias is taken to point at; None takes it for what it is."""
    target: RevisionDigest
    strategy: Strategy
    reason: str


def start(conn: Connection, wanted: Wanted, rollout: RolloutId, *, by: str, now: datetime) -> Standing:
    """Planned; it goes on by itself.

    Raises:
        NotFound: no such alias or revision.
        InvalidInput: a strategy that cannot be followed, or the alias points there already.
        Conflict: the alias is in a rollout, or does not point at `source`.
    """
    check_strategy(wanted.strategy)
    alias = fleet.find_alias(conn, wanted.alias)
    if alias is None:
        raise NotFound("alias", wanted.alias, "alias")
    if fleet.find_descriptor(conn, wanted.target) is None:
        raise NotFound("revision", wanted.target, "to")
    if wanted.source not in (None, alias.revision):
        raise Conflict(
            f"Alias '{wanted.alias}' points at {alias.revision}, not at {wanted.source}: leave out 'from', or look again."
        )
    if alias.revision == wanted.target:
        raise InvalidInput(f"Alias '{wanted.alias}' points at {wanted.target} already.", "to")
    started = RolloutStarted(
        rollout=rollout,
        alias=wanted.alias,
        source=alias.revision,
        target=wanted.target,
        strategy=wanted.strategy,
        by=by,
        reason=wanted.reason,
    )
    return rollouts.start(conn, started, now=now)


def pause(conn: Connection, rollout: RolloutId, *, by: str, reason: str, now: datetime) -> Standing:
    """No further step; conversations stay where they are, and what has been asked to be warmed is warmed.

    Raises:
        NotFound, Conflict.
    """
    return shift_flow.apply(
        conn, _locked(conn, rollout), RolloutPaused(rollout=rollout, by=by, reason=reason), now=now
    )


def resume(conn: Connection, rollout: RolloutId, *, by: str, reason: str, now: datetime) -> Standing:
    """It goes on where it was, its hold begins anew, and what went wrong before no longer counts.

    Raises:
        NotFound, Conflict.
    """
    return shift_flow.apply(
        conn, _locked(conn, rollout), RolloutResumed(rollout=rollout, by=by, reason=reason), now=now
    )


def abort(conn: Connection, rollout: RolloutId, *, by: str, reason: str, now: datetime) -> Standing:
    """Every conversation goes on where it was before. Raises: NotFound, Conflict."""
    _locked(conn, rollout)
    return shift_flow.abort(conn, rollout, by=by, reason=reason, now=now)


def roll_back(
    conn: Connection, rollout: RolloutId, successor: RolloutId, *, by: str, reason: str, now: datetime
) -> Standing:
    """Ends it, and leads all conversations back in another rollout, which is returned.

    The old revision's engines that this one set draining take attempts again; KV of the old revision is used as it
    is, and rebuilds for the newer one are superseded. Where no engine of the old revision is ready and the alias
    had moved, the new rollout waits for one, and turns go on where they are.

    Raises:
        NotFound: no such rollout.
        Conflict: nothing has moved yet, it has ended otherwise, or its alias has moved on since.
    """
    standing = _locked(conn, rollout)
    before = standing.rollout
    if before.percent == 0 and before.state is not RolloutState.DONE:
        raise Conflict(f"Rollout {rollout} has moved no conversation yet: abort it.")
    alias = fleet.find_alias(conn, before.alias)
    if before.alias_moved and (alias is None or alias.revision != before.target):
        raise Conflict(
            f"Alias '{before.alias}' has moved on since rollout {rollout}: start a rollout to the revision that you want."
        )
    rolled = RolloutRolledBack(rollout=rollout, successor=successor, by=by, reason=reason)
    shift_flow.apply(conn, standing, rolled, now=now)
    shift_flow.undrain(conn, before)
    shift_flow.supersede(conn, before, f"rollout {rollout} was rolled back")
    back = RolloutStarted(
        rollout=successor,
        alias=before.alias,
        source=before.target,
        target=before.source,
        strategy=_at_once(before),
        by=by,
        reason=reason,
        back_of=rollout,
    )
    started = rollouts.start(conn, back, now=now)
    if not before.alias_moved:
        # The alias still points there: to wait would be to move who had not been moved.
        reason = "the alias had not moved yet"
    elif pick_decode(fleet.live_engines(conn, {before.source}), before.source) is not None:
        # At once: a turn whose rebuild was superseded is planned anew in a moment, and not on what is being left.
        reason = "an engine of before is ready"
    else:
        return started
    return shift_flow.apply(conn, started, _all_moved(started.rollout, by, reason), now=now)


def _at_once(before: Rollout) -> Strategy:
    return Strategy(
        warm=0,
        warm_tokens_per_s=None,
        shift=(Share(percent=ALL, hold_s=0),),
        drain=Drain.NEVER,
        limits=before.strategy.limits,
    )


def _all_moved(rollout: Rollout, by: str, reason: str) -> RolloutStepped:
    return RolloutStepped(
        rollout=rollout.id,
        step=rollout.step + 1,
        state=RolloutState.SHIFTING,
        percent=ALL,
        engines=(),
        by=by,
        reason=reason,
    )


def _locked(conn: Connection, rollout: RolloutId) -> Standing:
    """Raises: NotFound."""
    return rollouts.lock(conn, rollout) or rollouts.find(conn, rollout)
