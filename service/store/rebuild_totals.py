"""What operators count of rebuilds: how many have ended and how, and what they prefill in a second."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, text

Labels = tuple[str, str]
"""Queue and state."""

ENDED = text("""
    SELECT queue, state, finished_at <= horizon.at AS settled, count(*) AS number, horizon.at
    FROM rebuilds CROSS JOIN (SELECT statement_timestamp() - interval '5 min' AS at) AS horizon
    WHERE finished_at > coalesce(CAST(:since AS timestamptz), '-infinity')
    GROUP BY 1, 2, 3, horizon.at
""")
"""A transaction that ended a rebuild has been committed, or has been given up, long before those five minutes are over."""

PREFILLED = text("""
    WITH span AS (SELECT statement_timestamp() AS till, statement_timestamp() - interval '1 min' AS began),
    worked_on AS (
        SELECT queue, tokens_done, started_at, finished_at, offer, revision FROM rebuilds
        WHERE state IN ('queued', 'running')
        UNION ALL
        SELECT queue, tokens_done, started_at, finished_at, offer, revision FROM rebuilds
        WHERE finished_at > statement_timestamp() - interval '1 min'
    ), prefilled AS (
        SELECT worked_on.queue, worked_on.started_at, worked_on.finished_at,
            worked_on.tokens_done - coalesce(found.tokens, 0) AS tokens
        FROM worked_on LEFT JOIN artifacts AS found
            ON found.artifact_id = worked_on.offer AND found.revision = worked_on.revision
    )
    SELECT queue, CAST(sum(
        tokens * extract(epoch FROM coalesce(finished_at, till) - greatest(started_at, began))
        / greatest(extract(epoch FROM coalesce(finished_at, till) - started_at), 0.001)
    ) / 60 AS double precision) AS tokens_per_s
    FROM prefilled CROSS JOIN span WHERE tokens > 0 AND started_at IS NOT NULL GROUP BY queue
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Ever, by queue and state; counted on from an earlier look, since nobody counts a million rows at each."""

    until: datetime | None = None
    settled: Mapping[Labels, int] = field(default_factory=dict)
    """Those that had ended by then."""
    recent: Mapping[Labels, int] = field(default_factory=dict)

    @property
    def all(self) -> dict[Labels, int]:
        return _sum(self.settled, self.recent)


def count_on(conn: Connection, before: Ended) -> Ended:
    """For a connection that sees all tenants."""
    settled: dict[Labels, int] = {}
    recent: dict[Labels, int] = {}
    until = before.until
    for row in conn.execute(ENDED, {"since": before.until}):
        (settled if row.settled else recent)[row.queue, row.state] = row.number
        until = row.at
    return Ended(until=until, settled=_sum(before.settled, settled), recent=recent)


def tokens_per_s(conn: Connection) -> dict[str, float]:
    """By queue, over the last minute; what a long rebuild prefilled is spread over the time since it was begun."""
    return {row.queue: row.tokens_per_s for row in conn.execute(PREFILLED)}


def _sum(one: Mapping[Labels, int], other: Mapping[Labels, int]) -> dict[Labels, int]:
    return {labels: one.get(labels, 0) + other.get(labels, 0) for labels in {**one, **other}}
