"""Who took the version that an append lost: asked when the transaction that lost it is over, so that it costs no append that wins."""

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from psycopg import Error
from psycopg.sql import Literal
from sqlalchemy import Connection

log = logging.getLogger(__name__)

WINNER = """
    SELECT type, occurred_at FROM events
    WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND stream_version = %(version)s
"""


def describe_winner(conn: Connection, place: Mapping[str, Any]) -> str | None:
    """The event at `place`, which is a tenant, a stream and a version, and its time; None where the database cannot be asked.

    The transaction was aborted by what it lost; it is rolled back here, as far as its innermost savepoint.
    """
    savepoint = conn.get_nested_transaction()
    (conn if savepoint is None else savepoint).rollback()
    # Past SQLAlchemy, to which that transaction has ended: whoever began it finds it closed, and can end it.
    driver = conn.connection
    try:
        with closing(driver.cursor()) as cursor:
            if savepoint is None:
                # Whoever could lose a version of this tenant's may see its rows.
                tenant = Literal(place["tenant"]).as_string()
                cursor.execute(f"BEGIN; SELECT set_config('app.tenant', {tenant}, true)")
            cursor.execute(WINNER, place)
            found = cursor.fetchone()
        if savepoint is None:
            driver.rollback()
    except Error as error:
        # The conflict is what is to be told, and it can be told without a name.
        log.warning("who won version %s of %s cannot be asked: %s", place["version"], place["stream"], error)
        return None
    return f"'{found[0]}' of {found[1]:%Y-%m-%d %H:%M:%S}" if found else None
