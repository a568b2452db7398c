"""The turns that wait for an engine, as a line for each alias; of all tenants, so only for a transaction that may see them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, text

from service.domain.events import TurnId


class WaitsFor(StrEnum):
    WORKER = "worker"
    """In the queue: asked for in the background, or taken from a process that is gone."""
    NEXT_ATTEMPT = "next_attempt"
    """The attempt before has failed."""
    ENGINE = "engine"
    """It has had no attempt yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    turn: TurnId
    waits_for: WaitsFor
    attempted: bool = False
    """It has had an attempt, which failed."""


def waiting_lines(conn: Connection) -> dict[str, list[Waiting]]:
    """By alias, longest waiting first. A turn waits that is open and has no attempt under way."""
    lines: dict[str, list[Waiting]] = {}
    for row in conn.execute(LINES):
        waits_for = WaitsFor(row.waits_for)
        one = Waiting(turn=TurnId(row.turn_id), waits_for=waits_for, attempted=row.attempted)
        lines.setdefault(row.alias, []).append(one)
    return lines


def counts(line: Iterable[Waiting]) -> dict[WaitsFor, int]:
    """Of a line, also what nobody in it waits for."""
    counted = dict.fromkeys(WaitsFor, 0)
    for one in line:
        counted[one.waits_for] += 1
    return counted


# Each attempt that was pinned fails once, if it does: none is under way where as many have failed.
LINES = text("""
    SELECT started.payload ->> 'alias' AS alias, turns.turn_id, CASE
        WHEN turns.queued_at IS NOT NULL THEN 'worker' WHEN failed.attempts > 0 THEN 'next_attempt' ELSE 'engine'
    END AS waits_for, failed.attempts > 0 AS attempted
    FROM turns
    JOIN events AS started ON started.type = 'turn.started' AND started.tenant_id = turns.tenant_id
        AND started.payload ->> 'turn' = turns.turn_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS attempts FROM events
        WHERE type = 'turn.pinned' AND tenant_id = turns.tenant_id AND payload ->> 'turn' = turns.turn_id
    ) AS pinned
    CROSS JOIN LATERAL (
        SELECT count(*) AS attempts FROM events
        WHERE type = 'attempt.failed' AND tenant_id = turns.tenant_id AND payload ->> 'turn' = turns.turn_id
    ) AS failed
    WHERE NOT turns.closed AND pinned.attempts = failed.attempts
    ORDER BY turns.opened_at, turns.turn_id
""")
