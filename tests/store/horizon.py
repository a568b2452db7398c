"""The feed shows nothing after the oldest transaction that is open anywhere on the server, other tests' services included."""

from time import monotonic, sleep

from sqlalchemy import Connection, text

TIMEOUT_S = 20.0

NEXT = text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint % (1::bigint << 32)")
ELSEWHERE = text("""
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'transactionid' AND granted AND datname <> current_database()
        AND transactionid::text::bigint < :before
""")


def wait_for_others(conn: Connection) -> None:
    """Until what is committed by now is held back by transactions of this database alone.

    Raises:
        TimeoutError: a transaction of another database lingers.
    """
    before, deadline = conn.execute(NEXT).scalar_one(), monotonic() + TIMEOUT_S
    while conn.execute(ELSEWHERE, {"before": before}).scalar_one():
        if monotonic() > deadline:
            raise TimeoutError(f"a transaction of another database is open for {TIMEOUT_S:g} s")
        sleep(0.01)
