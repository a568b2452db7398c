"""What a rollout is judged by: the log since it began, the rebuilds it asked for, and who cannot leave the old revision."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, select, text, update

from service.domain.artifact import BootId
from service.domain.events import ConversationId, TenantId
from service.domain.plan import EngineState
from service.domain.revision import RevisionDigest
from service.domain.rollout import Troubles
from service.domain.rollout_events import RolloutId
from service.store.fleet import live_engines
from service.store.rollout_tables import ACTIVE_STATES, rollout_warmups, rollouts
from service.store.tables import aliases

LOOK_BACK = 50
"""Turns of the alias that are looked through for each conversation to warm: the same ones come again and again."""
MOST_TURNS, MOST_EVENTS = 200_000, 2_000_000
"""That are looked through at all: who has not spoken in these is not among those who will next."""

TROUBLES = text("""
    SELECT (
        SELECT count(*) FROM events
        WHERE type = 'kv.refused' AND position > :since AND payload ->> 'engine_revision' = :target
            AND payload #>> '{refusal,reason}' <> 'revision_mismatch'
    ) AS refusals, (
        SELECT count(*) FROM events AS failed
        JOIN events AS pinned ON pinned.type = 'turn.pinned' AND pinned.tenant_id = failed.tenant_id
            AND pinned.payload ->> 'turn' = failed.payload ->> 'turn'
            AND pinned.payload ->> 'attempt' = failed.payload ->> 'attempt'
        WHERE failed.type = 'attempt.failed' AND failed.position > :since
            AND pinned.payload ->> 'revision' = :target
    ) AS failed_attempts, (
        SELECT count(*) FROM rebuilds
        WHERE state = 'failed' AND revision = :target AND finished_at > :since_time
            AND reason NOT LIKE 'cancelled by %'
    ) AS failed_rebuilds, (
        SELECT count(*) FROM events
        WHERE tenant_id = 'fleet' AND stream = 'canary/' || :target AND type = 'canary.failed'
            AND position > :since
    ) AS failed_canaries
""")

RECENT = text("""
    WITH recent AS (
        SELECT tenant_id, stream, position FROM events
        WHERE type = 'turn.started' AND payload ->> 'alias' = :alias
            AND position > (SELECT max(position) FROM events) - :depth
        ORDER BY position DESC LIMIT :looked_at
    )
    INSERT INTO rollout_warmups (rollout_id, place, tenant_id, conversation_id)
    SELECT :rollout, row_number() OVER (ORDER BY max(position) DESC), tenant_id, stream
    FROM recent GROUP BY tenant_id, stream ORDER BY max(position) DESC LIMIT :warm
""")

# The rebuild of a warm-up names the turn that was answered last when it was asked for.
AGAIN = text("""
    WITH latest AS (
        SELECT DISTINCT ON (tenant_id, conversation_id) tenant_id, conversation_id, place, rebuild_id
        FROM rollout_warmups WHERE rollout_id = :rollout ORDER BY tenant_id, conversation_id, place DESC
    ), round AS (
        SELECT (max(place) - 1) / :warm + 1 AS number FROM latest
    )
    INSERT INTO rollout_warmups (rollout_id, place, tenant_id, conversation_id)
    SELECT :rollout, round.number * :warm + (latest.place - 1) % :warm + 1, latest.tenant_id, latest.conversation_id
    FROM latest JOIN rebuilds AS warmed USING (rebuild_id)
    CROSS JOIN round
    CROSS JOIN LATERAL (
        SELECT payload ->> 'turn' AS turn FROM events
        WHERE tenant_id = latest.tenant_id AND stream = latest.conversation_id AND type = 'turn.completed'
        ORDER BY stream_version DESC LIMIT 1
    ) AS answered
    WHERE round.number < :rounds AND warmed.state = 'done' AND answered.turn <> warmed.turn_id
""").bindparams(bindparam("warm", type_=BigInteger), bindparam("rounds", type_=BigInteger))

STRICT = text("""
    SELECT strict.stream AS conversation_id
    FROM (
        SELECT DISTINCT tenant_id, stream FROM events
        WHERE type = 'turn.started' AND payload ->> 'on_upgrade' = 'stay_strict'
    ) AS strict
    CROSS JOIN LATERAL (
        SELECT payload ->> 'engine_revision' AS revision FROM events AS answered
        WHERE answered.tenant_id = strict.tenant_id AND answered.stream = strict.stream AND type = 'turn.completed'
        ORDER BY stream_version DESC LIMIT 1
    ) AS last
    CROSS JOIN LATERAL (
        SELECT payload ->> 'on_upgrade' AS policy FROM events AS begun
        WHERE begun.tenant_id = strict.tenant_id AND begun.stream = strict.stream AND type = 'turn.started'
        ORDER BY stream_version DESC LIMIT 1
    ) AS latest
    WHERE last.revision = :revision AND latest.policy = 'stay_strict' AND NOT EXISTS (
        SELECT FROM events AS ended
        WHERE ended.tenant_id = strict.tenant_id AND ended.stream = strict.stream
            AND type IN ('conversation.deleted', 'conversation.erased')
    )
    ORDER BY strict.stream
""")

# Who is warmed again has a further row beyond the first `warm`, and is as warm as that one.
WARMED = text("""
    WITH counted AS (
        SELECT count(*) FILTER (WHERE first) AS total,
            count(*) FILTER (WHERE w.rebuild_id IS NULL AND w.skipped IS NULL) AS waiting,
            count(*) FILTER (WHERE r.state IN ('queued', 'running')) AS running,
            count(*) FILTER (WHERE r.state = 'failed') AS failed,
            count(*) FILTER (WHERE first AND (
                w.skipped IS NOT NULL OR r.state = 'superseded' OR (w.rebuild_id IS NOT NULL AND r.state IS NULL)
            )) AS skipped,
            coalesce(sum(w.tokens), 0)::bigint AS tokens_asked,
            coalesce(sum(w.tokens) FILTER (WHERE r.state = 'done'), 0)::bigint AS tokens_done
        FROM rollout_warmups AS w LEFT JOIN rebuilds AS r USING (rebuild_id)
        CROSS JOIN (SELECT (strategy ->> 'warm')::bigint AS warm FROM rollouts WHERE rollout_id = :rollout) AS asked
        CROSS JOIN LATERAL (SELECT w.place <= asked.warm AS first) AS of_place
        WHERE w.rollout_id = :rollout
    )
    SELECT *, total - waiting - running - failed - skipped AS done FROM counted
""")


LATELY = text("""
    SELECT
        coalesce(sum(w.tokens) FILTER (WHERE r.created_at >= began.at), 0)::bigint AS tokens_asked,
        count(*) FILTER (WHERE r.state = 'done' AND r.finished_at >= began.at) AS done
    FROM rollout_warmups AS w JOIN rebuilds AS r USING (rebuild_id)
    CROSS JOIN (SELECT now() - make_interval(secs => :seconds) AS at) AS began
    WHERE w.rollout_id = :rollout
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """Of the conversations that a rollout warms, since it began to, or was resumed."""

    tokens_asked: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """Of the conversations that a rollout warms, each counted once, also one that is warmed again."""

    total: int
    waiting: int
    running: int
    done: int
    failed: int
    skipped: int
    """What needed no warming, or could not be: its own turns make their KV."""
    tokens_asked: int
    tokens_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    place: int
    tenant: TenantId
    conversation: ConversationId


def troubles(conn: Connection, target: RevisionDigest, *, since: int, since_time: object) -> Troubles:
    row = conn.execute(TROUBLES, {"since": since, "target": target, "since_time": since_time}).one()
    return Troubles(
        refusals=row.refusals,
        failed_attempts=row.failed_attempts,
        failed_rebuilds=row.failed_rebuilds,
        failed_canaries=row.failed_canaries,
    )


def choose_warmups(conn: Connection, rollout: RolloutId, alias: str, warm: int) -> None:
    """The conversations that had a turn on the alias last, the latest first."""
    looked_at = min(warm * LOOK_BACK, MOST_TURNS)
    given = {"rollout": rollout, "alias": alias, "warm": warm, "looked_at": looked_at, "depth": MOST_EVENTS}
    conn.execute(RECENT, given)


def warm_again(conn: Connection, rollout: RolloutId, warm: int, *, rounds: int) -> None:
    """Those of its `warm` conversations that were answered since they were warmed, as further ones; at most in `rounds` - 1 rounds."""
    conn.execute(AGAIN, {"rollout": rollout, "warm": warm, "rounds": rounds})


def warmth(conn: Connection, rollout: RolloutId) -> Warmth:
    return Warmth(**conn.execute(WARMED, {"rollout": rollout}).mappings().one())


def lately(conn: Connection, rollout: RolloutId, *, seconds: float) -> Lately:
    """Args: seconds: for so long it has been at it; the database's clock need not be that of who moves it."""
    given = {"rollout": rollout, "seconds": max(0.0, seconds)}
    return Lately(**conn.execute(LATELY, given).mappings().one())


def next_warmups(conn: Connection, rollout: RolloutId, limit: int) -> list[Candidate]:
    columns = rollout_warmups.c
    query = (
        select(columns.place, columns.tenant_id, columns.conversation_id)
        .where(columns.rollout_id == rollout, columns.rebuild_id.is_(None), columns.skipped.is_(None))
        .order_by(columns.place)
        .limit(limit)
    )
    return [
        Candidate(
            place=row.place,
            tenant=TenantId(row.tenant_id),
            conversation=ConversationId(row.conversation_id),
        )
        for row in conn.execute(query)
    ]


def warm_by(conn: Connection, rollout: RolloutId, place: int, *, rebuild: str, tokens: int) -> None:
    _settle(conn, rollout, place, {"rebuild_id": rebuild, "tokens": tokens})


def skip(conn: Connection, rollout: RolloutId, place: int, why: str) -> None:
    _settle(conn, rollout, place, {"skipped": why})


def pace(conn: Connection, rollout: RolloutId) -> int | None:
    """Tokens a second that it may warm; None where it may as many as it can."""
    query = text(
        "SELECT (strategy ->> 'warm_tokens_per_s')::bigint FROM rollouts WHERE rollout_id = :rollout"
    )
    found: int | None = conn.execute(query, {"rollout": rollout}).scalar_one_or_none()
    return found


def strict_on(conn: Connection, revision: RevisionDigest) -> list[ConversationId]:
    """Conversations whose last answer is of this revision, and whose last turn was to go on nowhere else."""
    return [ConversationId(name) for name in conn.execute(STRICT, {"revision": revision}).scalars()]


def needed(conn: Connection, *, but: str) -> dict[str, frozenset[RevisionDigest]]:
    """By alias, without `but`: the revisions that it points at, or that a rollout leads it from or to."""
    pointed = conn.execute(select(aliases.c.alias, aliases.c.revision).where(aliases.c.alias != but))
    led = conn.execute(
        select(rollouts.c.alias, rollouts.c.source, rollouts.c.target).where(
            rollouts.c.alias != but, rollouts.c.state.in_(ACTIVE_STATES)
        )
    )
    found: dict[str, frozenset[RevisionDigest]] = {}
    for alias, *revisions in [*pointed, *led]:
        found[alias] = found.get(alias, frozenset()) | {RevisionDigest(name) for name in revisions}
    return found


def drainable(
    conn: Connection, source: RevisionDigest, kept: Collection[RevisionDigest]
) -> tuple[BootId, ...]:
    """Ready engines that serve `source`, and none of those that are kept."""
    fleet = live_engines(conn)
    busy = {engine.boot for engine in fleet if engine.revision in kept}
    found = {e.boot for e in fleet if e.revision == source and e.state is EngineState.READY}
    return tuple(sorted(found - busy))


def running_on(conn: Connection, boots: Collection[BootId]) -> int:
    """Attempts."""
    return sum({e.boot: e.load for e in live_engines(conn) if e.boot in boots}.values())


SUPERSEDE = text("""
    UPDATE rebuilds SET state = 'superseded', finished_at = clock_timestamp(), reason = :reason
    WHERE state IN ('queued', 'running') AND revision = :target AND (
        rollout_id = :rollout OR (rollout_id IS NULL AND EXISTS (
            SELECT FROM events AS started
            WHERE started.type = 'turn.started' AND started.tenant_id = rebuilds.tenant_id
                AND started.payload ->> 'turn' = rebuilds.turn_id
                AND started.payload ->> 'alias' = :alias AND started.payload ->> 'revision' IS NULL
        ))
    )
""")


def supersede(
    conn: Connection, rollout: RolloutId, *, alias: str, target: RevisionDigest, reason: str
) -> int:
    """Its own rebuilds and those that turns of the alias wait for; returns how many there were."""
    given: dict[str, Any] = {"rollout": rollout, "alias": alias, "target": target, "reason": reason}
    return conn.execute(SUPERSEDE, given).rowcount


def queue_depths(conn: Connection) -> dict[tuple[str, str], tuple[int, float]]:
    """Of the active rebuilds, by queue and state: how many, and for how many seconds the oldest has been there."""
    rows = conn.execute(
        text("""
            SELECT queue, state, count(*) AS depth,
                extract(epoch FROM clock_timestamp() - min(created_at)) AS oldest_s
            FROM rebuilds WHERE state IN ('queued', 'running') GROUP BY queue, state
        """)
    )
    return {(row.queue, row.state): (row.depth, float(row.oldest_s)) for row in rows}


def _settle(conn: Connection, rollout: RolloutId, place: int, values: dict[str, Any]) -> None:
    query = update(rollout_warmups).where(
        rollout_warmups.c.rollout_id == rollout, rollout_warmups.c.place == place
    )
    conn.execute(query.values(values))
