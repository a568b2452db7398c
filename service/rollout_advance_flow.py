"""One step of a rollout at a time, by itself: whoever holds its row decides from what is true now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service import shift_flow
from service.domain.errors import VersionConflict
from service.domain.events import OnUpgrade
from service.domain.head import Head
from service.domain.plan import (
    EngineRole,
    EngineState,
    RebuildQueue,
    StoredArtifact,
    pick_decode,
    pick_prefill,
)
from service.domain.revision import same_text
from service.domain.rollout import Facts, Rollout, Waiting, held_back, next_move
from service.domain.rollout_events import RolloutId, RolloutState
from service.store import artifacts, fleet, heads, rebuilds, rollout_facts, rollouts
from service.store.rollout_facts import Candidate, Lately, Warmth
from service.store.rollouts import Standing
from service.store.waiting import WaitsFor, counts, waiting_lines

IN_FLIGHT = 8
"""Rebuilds of a rollout that are asked for at once, for each engine that can: more would only wait, and be superseded in vain."""
LOOKED_AT = 50
"""Conversations at one step: most need no rebuild, and each look is a few statements."""
ROUNDS = 3
"""Of a warm-up. After the first, those who talked on: what they said meanwhile would be prefilled in front of their first turn on the target."""
BURST_S = 1.0
"""Of the pace, so that a history longer than a second's tokens can begin at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """As seen without holding the rollout."""

    standing: Standing
    warmth: Warmth
    facts: Facts
    lately: Lately
    turns_waiting: Mapping[WaitsFor, int]
    """Of its alias: they have no attempt yet."""


def advance(
    conn: Connection,
    rollout: RolloutId,
    *,
    now: datetime,
    new_id: Callable[[str], str],
    warm_min_tokens: int,
) -> list[str]:
    """At most one step; returns the rebuilds to be rung for. Nothing where another holds the rollout, or it has ended."""
    standing = rollouts.lock(conn, rollout, wait=False)
    if standing is None or standing.ended_at is not None:
        return []
    rung: list[str] = []
    if standing.rollout.state is RolloutState.WARMING:
        _go_round(conn, standing.rollout)
    if standing.rollout.state is RolloutState.WARMING and not _held_back(conn, standing, now):
        rung = _warm(conn, standing, now=now, new_id=new_id, warm_min_tokens=warm_min_tokens)
    move = next_move(standing.rollout, look(conn, standing, now))
    if isinstance(move, Waiting):
        rollouts.note_waiting(conn, standing, move.reason)
        return rung
    after = shift_flow.apply(conn, standing, move, now=now)
    if after.rollout.state is RolloutState.WARMING and standing.rollout.state is RolloutState.PLANNED:
        rollout_facts.choose_warmups(conn, rollout, after.rollout.alias, after.rollout.strategy.warm)
    return rung


def progress(conn: Connection, rollout: RolloutId, now: datetime) -> Progress:
    """Raises: NotFound."""
    standing = rollouts.find(conn, rollout)
    return Progress(
        standing=standing,
        warmth=rollout_facts.warmth(conn, rollout),
        facts=look(conn, standing, now),
        lately=_lately(conn, standing, now),
        turns_waiting=counts(waiting_lines(conn).get(standing.rollout.alias, ())),
    )


def _lately(conn: Connection, standing: Standing, now: datetime) -> Lately:
    seconds = (now - standing.since).total_seconds()
    return rollout_facts.lately(conn, standing.rollout.id, seconds=seconds)


def _held_back(conn: Connection, standing: Standing, now: datetime) -> bool:
    """Without a look where the strategy asks for none."""
    if standing.rollout.strategy.max_engine_load is None:
        return False
    return held_back(standing.rollout, look(conn, standing, now)) is not None


def look(conn: Connection, standing: Standing, now: datetime) -> Facts:
    rollout = standing.rollout
    engines = fleet.live_engines(conn, {rollout.target})
    least_busy = pick_prefill(engines, rollout.target)
    needed = rollout_facts.needed(conn, but=rollout.alias)
    kept = {rollout.target}.union(*needed.values())
    warmth = rollout_facts.warmth(conn, rollout.id)
    leaving = rollout.alias_moved and rollout.state is RolloutState.SHIFTING
    return Facts(
        now=now,
        since=standing.since,
        serving=pick_decode(engines, rollout.target) is not None,
        least_load=None if least_busy is None else least_busy.busy,
        warming=warmth.waiting + warmth.running,
        troubles=rollout_facts.troubles(
            conn, rollout.target, since=standing.counted_from, since_time=standing.counted_since
        ),
        strict=len(rollout_facts.strict_on(conn, rollout.source)) if leaving else 0,
        shared_by=tuple(sorted(alias for alias, of in needed.items() if rollout.source in of)),
        drainable=rollout_facts.drainable(conn, rollout.source, kept) if leaving else (),
        draining=rollout_facts.running_on(conn, rollout.drained),
    )


def _go_round(conn: Connection, rollout: Rollout) -> None:
    """Again, where all of a round are warm."""
    warmth = rollout_facts.warmth(conn, rollout.id)
    if not warmth.waiting and not warmth.running:
        rollout_facts.warm_again(conn, rollout.id, rollout.strategy.warm, rounds=ROUNDS)


def _warm(
    conn: Connection,
    standing: Standing,
    *,
    now: datetime,
    new_id: Callable[[str], str],
    warm_min_tokens: int,
) -> list[str]:
    rollout = standing.rollout
    room = _room(conn, rollout) - rollout_facts.warmth(conn, rollout.id).running
    pace, asked = rollout.strategy.warm_tokens_per_s, _lately(conn, standing, now).tokens_asked
    allowed = None if pace is None else pace * ((now - standing.since).total_seconds() + BURST_S)
    rung: list[str] = []
    for candidate in rollout_facts.next_warmups(conn, rollout.id, LOOKED_AT):
        if len(rung) >= room or (allowed is not None and asked >= allowed):
            break
        head = heads.load_head(conn, candidate.tenant, candidate.conversation)
        stored = _stored(conn, rollout, candidate, head)
        why = _why_not(conn, rollout, head, stored, warm_min_tokens)
        if why is not None or head.last is None:
            rollout_facts.skip(conn, rollout.id, candidate.place, why or "it has no answer")
            continue
        left = head.window_tokens - (0 if stored is None else stored.tokens)
        rebuild = _ask_for(conn, rollout, candidate, head, stored, rebuild=new_id("rb_"))
        if rebuild is not None:
            rollout_facts.warm_by(conn, rollout.id, candidate.place, rebuild=rebuild, tokens=left)
            asked += left
            rung.append(rebuild)
    return rung


def _room(conn: Connection, rollout: Rollout) -> int:
    """For rebuilds that are asked for at once."""
    fleet_now = fleet.live_engines(conn, {rollout.target})
    able = {e.boot for e in fleet_now if e.state is EngineState.READY and e.role is not EngineRole.DECODE}
    return IN_FLIGHT * max(1, len(able))


def _ask_for(
    conn: Connection,
    rollout: Rollout,
    candidate: Candidate,
    head: Head,
    stored: StoredArtifact | None,
    *,
    rebuild: str,
) -> str | None:
    """None where a turn or another rollout has it rebuilt at this moment."""
    assert head.last is not None  # noqa: S101 it would have been skipped
    try:
        with conn.begin_nested():
            rebuilds.enqueue(
                conn,
                rebuild=rebuild,
                tenant=candidate.tenant,
                conversation=candidate.conversation,
                turn=head.last.turn,
                attempt=1,
                revision=rollout.target,
                offer=None if stored is None else stored.artifact,
                tokens_total=head.window_tokens,
                queue=RebuildQueue.BACKGROUND,
                rollout=rollout.id,
            )
    except VersionConflict:
        rollout_facts.skip(conn, rollout.id, candidate.place, "it is being rebuilt already")
        return None
    return rebuild


def _stored(conn: Connection, rollout: Rollout, candidate: Candidate, head: Head) -> StoredArtifact | None:
    """The most that there is of it on the target."""
    stored = artifacts.of_conversation(conn, candidate.tenant, candidate.conversation, head.ancestors)
    return max((a for a in stored if a.revision == rollout.target), key=lambda a: a.tokens, default=None)


def _why_not(
    conn: Connection, rollout: Rollout, head: Head, stored: StoredArtifact | None, warm_min_tokens: int
) -> str | None:
    """Why the conversation is not warmed, where it is not."""
    if head.deleted or head.erased is not None:
        return "it was deleted"
    if head.last is None or head.window_tokens < warm_min_tokens:
        return "its history is so short that a turn prefills it on the spot"
    if head.last.engine_revision == rollout.target:
        return "it is on the target already"
    if head.newest is not None and head.newest.started.on_upgrade is not OnUpgrade.REPLAY:
        return f"its on_upgrade is {head.newest.started.on_upgrade}"
    if stored is not None and head.window_tokens - stored.tokens < warm_min_tokens:
        return "it has KV of the target"
    ours = fleet.find_descriptor(conn, rollout.target)
    theirs = fleet.find_descriptor(conn, head.last.engine_revision)
    if ours is None or theirs is None or not same_text(ours, theirs):
        return "the text identity differs: its history is rendered anew"
    return None
