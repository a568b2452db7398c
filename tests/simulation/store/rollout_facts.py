"""As service.store.rollout_facts: what a rollout is judged by."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from service.domain.artifact import BootId
from service.domain.events import ConversationId, OnUpgrade, TenantId, TurnId, TurnStarted
from service.domain.plan import EngineState
from service.domain.revision import RevisionDigest
from service.domain.rollout import ACTIVE, Troubles
from service.domain.rollout_events import RolloutId
from service.store.rebuilds import RebuildState
from service.store.rollout_facts import Candidate, Lately, Warmth
from tests.simulation.store.fleet import live_engines
from tests.simulation.store.rebuilds import end_by_hand
from tests.simulation.tables import Session, WarmupRow


def troubles(conn: Session, target: RevisionDigest, *, since: int, since_time: object) -> Troubles:
    tables = conn.tables
    failed = [
        row.seen
        for row in tables.rebuilds.values()
        if row.seen.state is RebuildState.FAILED and row.seen.revision == target
    ]
    return Troubles(
        refusals=sum(
            position > since and revision == target and reason != "revision_mismatch"
            for position, revision, reason in tables.refusals
        ),
        failed_attempts=sum(
            position > since and revision == target for position, revision in tables.failures
        ),
        failed_rebuilds=sum(
            seen.finished_at is not None
            and seen.finished_at > since_time  # type: ignore[operator]
            and not str(seen.reason).startswith("cancelled by ")
            for seen in failed
        ),
        failed_canaries=0,
    )


def choose_warmups(conn: Session, rollout: RolloutId, alias: str, warm: int) -> None:
    recent = sorted(conn.tables.recent.get(alias, {}).items(), key=lambda item: -item[1])
    for place, ((tenant, stream), _) in enumerate(recent[:warm], 1):
        row = WarmupRow(tenant=tenant, conversation=ConversationId(stream))
        conn.set(conn.tables.warmups, (rollout, place), row)


def warm_again(conn: Session, rollout: RolloutId, warm: int, *, rounds: int) -> None:
    rows = list(_warmups(conn, rollout))
    latest = {(row.tenant, row.conversation): (place, row) for place, row in rows}
    number = (max((place for place, _ in rows), default=0) - 1) // warm + 1
    if number >= rounds:
        return
    for place, row in latest.values():
        seen = None if row.rebuild is None else conn.tables.rebuilds[row.rebuild].seen
        last = conn.tables.heads[row.tenant, row.conversation].last
        if (
            seen is not None
            and seen.state is RebuildState.DONE
            and last is not None
            and last.turn != seen.turn
        ):
            again = WarmupRow(tenant=row.tenant, conversation=row.conversation)
            conn.set(conn.tables.warmups, (rollout, number * warm + (place - 1) % warm + 1), again)


def warmth(conn: Session, rollout: RolloutId) -> Warmth:
    states: list[tuple[int, WarmupRow, RebuildState | None]] = []
    for place, row in _warmups(conn, rollout):
        found = None if row.rebuild is None else conn.tables.rebuilds.get(row.rebuild)
        states.append((place, row, None if found is None else found.seen.state))
    warm = conn.tables.rollouts[rollout].rollout.strategy.warm
    firsts = [(row, state) for place, row, state in states if place <= warm]
    waiting = sum(row.rebuild is None and row.skipped is None for _, row, _ in states)
    running = sum(state in (RebuildState.QUEUED, RebuildState.RUNNING) for *_, state in states)
    failed = sum(state is RebuildState.FAILED for *_, state in states)
    skipped = sum(row.skipped is not None or state is RebuildState.SUPERSEDED for row, state in firsts)
    return Warmth(
        total=len(firsts),
        waiting=waiting,
        running=running,
        done=len(firsts) - waiting - running - failed - skipped,
        failed=failed,
        skipped=skipped,
        tokens_asked=sum(row.tokens for _, row, _ in states),
        tokens_done=sum(row.tokens for _, row, state in states if state is RebuildState.DONE),
    )


def lately(conn: Session, rollout: RolloutId, *, seconds: float) -> Lately:
    began = conn.now - timedelta(seconds=seconds)
    asked = done = 0
    for _, row in _warmups(conn, rollout):
        seen = None if row.rebuild is None else conn.tables.rebuilds[row.rebuild].seen
        if seen is not None:
            asked += row.tokens if seen.created_at >= began else 0
            done += seen.state is RebuildState.DONE and (seen.finished_at or began) >= began
    return Lately(tokens_asked=asked, done=done)


def next_warmups(conn: Session, rollout: RolloutId, limit: int) -> list[Candidate]:
    waiting = [
        Candidate(place=place, tenant=row.tenant, conversation=row.conversation)
        for place, row in _warmups(conn, rollout)
        if row.rebuild is None and row.skipped is None
    ]
    return waiting[:limit]


def warm_by(conn: Session, rollout: RolloutId, place: int, *, rebuild: str, tokens: int) -> None:
    row = conn.tables.warmups[rollout, place]
    conn.set(conn.tables.warmups, (rollout, place), replace(row, rebuild=rebuild, tokens=tokens))


def skip(conn: Session, rollout: RolloutId, place: int, why: str) -> None:
    row = conn.tables.warmups[rollout, place]
    conn.set(conn.tables.warmups, (rollout, place), replace(row, skipped=why))


def pace(conn: Session, rollout: RolloutId) -> int | None:
    standing = conn.tables.rollouts.get(rollout)
    return None if standing is None else standing.rollout.strategy.warm_tokens_per_s


def strict_on(conn: Session, revision: RevisionDigest) -> list[ConversationId]:
    found = []
    for (_, stream), head in conn.tables.heads.items():
        latest = head.newest
        strict = latest is not None and latest.started.on_upgrade is OnUpgrade.STAY_STRICT
        if strict and head.last is not None and head.last.engine_revision == revision and not head.deleted:
            found.append(ConversationId(stream))
    return sorted(found)


def needed(conn: Session, *, but: str) -> dict[str, frozenset[RevisionDigest]]:
    found: dict[str, frozenset[RevisionDigest]] = {}
    for alias, row in conn.tables.aliases.items():
        if alias != but:
            found[alias] = found.get(alias, frozenset()) | {row.revision}
    for standing in conn.tables.rollouts.values():
        rollout = standing.rollout
        if rollout.alias != but and rollout.state in ACTIVE:
            found[rollout.alias] = found.get(rollout.alias, frozenset()) | {rollout.source, rollout.target}
    return found


def drainable(conn: Session, source: RevisionDigest, kept: Collection[RevisionDigest]) -> tuple[BootId, ...]:
    engines = live_engines(conn)
    busy = {engine.boot for engine in engines if engine.revision in kept}
    found = {e.boot for e in engines if e.revision == source and e.state is EngineState.READY}
    return tuple(sorted(found - busy))


def running_on(conn: Session, boots: Collection[BootId]) -> int:
    return sum({e.boot: e.load for e in live_engines(conn) if e.boot in boots}.values())


def supersede(conn: Session, rollout: RolloutId, *, alias: str, target: RevisionDigest, reason: str) -> int:
    ended = 0
    for name in list(conn.tables.unfinished):
        seen = conn.tables.rebuilds[name].seen
        started = _started(conn, seen.tenant, seen.conversation, seen.turn)
        waited_for = seen.rollout is None and started.alias == alias and started.revision is None
        if seen.revision == target and (seen.rollout == rollout or waited_for):
            ended += end_by_hand(conn, name, RebuildState.SUPERSEDED, reason)
    return ended


def _warmups(conn: Session, rollout: RolloutId) -> Iterator[tuple[int, WarmupRow]]:
    """By place."""
    for place in sorted(place for name, place in conn.tables.warmups if name == rollout):
        yield place, conn.tables.warmups[rollout, place]


def _started(conn: Session, tenant: TenantId, conversation: ConversationId, turn: TurnId) -> TurnStarted:
    history = conn.tables.events[tenant, conversation]
    return next(row.event for row in history if isinstance(row.event, TurnStarted) and row.event.turn == turn)
