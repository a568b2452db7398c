"""Who took what an append lost: asked when the transaction that lost it is over, so that it costs no append that wins."""

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from psycopg import Error
from psycopg.sql import Literal
from sqlalchemy import Connection

from service.domain.events import TurnCompleted, TurnPinned, TurnStarted

log = logging.getLogger(__name__)

WINNER = """
    SELECT type, occurred_at FROM events
    WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND stream_version = %(version)s
"""
# The type stands in the text: that is how the planner knows which of the partial indexes to take.
HOLDER = """
    SELECT stream, occurred_at, payload ->> 'attempt', payload ->> 'engine' FROM events
    WHERE type = '{type}' AND tenant_id = %(tenant)s AND payload ->> 'turn' = %(turn)s {attempt}
"""
OF_ATTEMPT = "AND payload ->> 'attempt' = %(attempt)s"

Once = TurnStarted | TurnPinned | TurnCompleted
"""What a turn, or an attempt, does once."""


def describe_winner(conn: Connection, place: Mapping[str, Any]) -> str | None:
    """The event at `place`, which is a tenant, a stream and a version, and its time; None where the database cannot be asked.

    The transaction was aborted by what it lost; it is rolled back here, as far as its innermost savepoint.
    """
    found = _asked(conn, WINNER, place, f"version {place['version']} of {place['stream']}")
    return f"'{found[0]}' of {found[1]:%Y-%m-%d %H:%M:%S}" if found else None


def describe_holder(conn: Connection, tenant: str, lost: Once) -> str | None:
    """Which attempt, engine and stream have done before what `lost` would have done, and when; else as `describe_winner`."""
    attempt = str(lost.attempt) if isinstance(lost, TurnPinned) else None
    query = HOLDER.format(type=lost.name, attempt="" if attempt is None else OF_ATTEMPT)
    place = {"tenant": tenant, "turn": lost.turn, "attempt": attempt}
    found = _asked(conn, query, place, f"'{lost.name}' of turn {lost.turn}")
    if found is None:
        return None
    stream, occurred_at, of_attempt, engine = found
    whose = f"attempt {of_attempt} on engine {engine}, " if of_attempt else ""
    return f"{whose}{stream} at {occurred_at:%Y-%m-%d %H:%M:%S}"


def _asked(conn: Connection, query: str, place: Mapping[str, Any], what: str) -> tuple[Any, ...] | None:
    savepoint = conn.get_nested_transaction()
    (conn if savepoint is None else savepoint).rollback()
    # Past SQLAlchemy, to which that transaction has ended: whoever began it finds it closed, and can end it.
    driver = conn.connection
    try:
        with closing(driver.cursor()) as cursor:
            if savepoint is None:
                # Whoever could lose something of this tenant's may see its rows.
                tenant = Literal(place["tenant"]).as_string()
                cursor.execute(f"BEGIN; SELECT set_config('app.tenant', {tenant}, true)")
            cursor.execute(query, place)
            found: tuple[Any, ...] | None = cursor.fetchone()
        if savepoint is None:
            driver.rollback()
    except Error as error:
        # The conflict is what is to be told, and it can be told without a name.
        log.warning("who won %s cannot be asked: %s", what, error)
        return None
    return found
