"""Every question of docs/audit.md as it stands there, on a made-up log of a million events: on the clock, and in time of one CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import psycopg
from psycopg import sql
from sqlalchemy import Connection, text

from bench.store_history import FILL_STEPS
from service.store.connection import AUDITOR_ROLE, make_engine
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from tests.audit.document import questions

DATABASE = "audited"
EVENTS_PER_TURN = 7


def audit_figures(server: EmbeddedPostgres, events: int) -> dict[str, float]:
    """In a database of its own: what the other figures left behind has no part in the log that is asked about."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    upgrade(server.url(DATABASE))
    with connected(server, None) as conn:
        for step in FILL_STEPS:
            conn.execute(text(step), {"turns": events // EVENTS_PER_TURN})
        count = conn.execute(text("SELECT count(*) FROM events")).scalar_one()
    print(f"{count} events", flush=True)
    slowest, busiest = 0.0, 0.0
    with connected(server, AUDITOR_ROLE) as conn:
        backend = psutil.Process(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())
        for question in questions():
            took = min(timed_query(conn, question.query) for _ in range(2))
            cpu = cpu_of(backend, conn, question.query)
            slowest, busiest = max(slowest, took), max(busiest, cpu)
            print(
                f"  {took:6.2f} s, {cpu:5.2f} s of one CPU  {question.number}. {question.question}",
                flush=True,
            )
    return {
        "audit_events": count,
        "slowest_audit_s": round(slowest, 2),
        "slowest_audit_cpu_s": round(busiest, 2),
    }


@contextmanager
def connected(server: EmbeddedPostgres, role: str | None) -> Iterator[Connection]:
    engine = make_engine(server.url(DATABASE), application_name="bench-audit", role=role)
    with engine.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT")
        conn.execute(text("SET statement_timeout = 0"))
        conn.execute(text("SET idle_in_transaction_session_timeout = 0"))
        yield conn
    engine.dispose()


def timed_query(conn: Connection, query: str) -> float:
    started = time.perf_counter()
    conn.exec_driver_sql(query.rstrip(";")).fetchall()
    return time.perf_counter() - started


def cpu_of(backend: psutil.Process, conn: Connection, query: str) -> float:
    """Of the process that answers, without help from others: what is left of a figure on a machine that does other work."""
    conn.execute(text("SET max_parallel_workers_per_gather = 0"))
    before = sum(backend.cpu_times()[:2])
    timed_query(conn, query)
    conn.execute(text("RESET max_parallel_workers_per_gather"))
    return float(sum(backend.cpu_times()[:2]) - before)
