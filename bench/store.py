"""`make bench-store`: what the store costs against bare psycopg, how it grows, and how fast the audit answers.

All figures of one run are of one server; contenders take turns in short rounds, so that a busy machine slows all alike.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, Engine, text

from bench.store_history import FILL_STEPS, TURN_TOKENS, turn_events
from service.domain.events import ConversationId, Event, TenantId
from service.store import event_store
from service.store.chain import SALT_BYTES
from service.store.codec import encode, to_json_text
from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from tests.audit.document import questions

TENANT = TenantId("acme")
WRITERS = (1, 4, 16)
SIZES = (10, 200, 1000)
BARE = """
INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment, chain)
VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s)
"""
BARE_CONTENT = """
INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens) VALUES (%s, %s, %s, %s, %s, %s)
"""

Turns = Sequence[tuple[list[Event], list[Event]]]
Write = Callable[[str, Turns, list[float]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=320, help="of a round, over all writers")
    parser.add_argument("--events", type=int, default=1_000_000, help="that the audit is asked about")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everturn-bench-"))
    folder.chmod(0o711)
    try:
        with EmbeddedPostgres(folder / "postgres") as server:
            upgrade(server.url())
            found = append_figures(server, given.rounds, given.turns)
            found |= growth_figures(server)
            found |= audit_figures(server, given.events)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))


def append_figures(server: EmbeddedPostgres, rounds: int, turns: int) -> dict[str, float]:
    """Ratios are medians over rounds, each of both contenders."""
    engine = make_engine(server.url(), application_name="bench", pool_size=max(WRITERS))
    ways: dict[str, Write] = {
        "bare": lambda stream, work, took: write_bare(server.dsn(), stream, work, took),
        "ours": lambda stream, work, took: write_ours(engine, stream, work, took),
    }
    found: dict[str, float] = {}
    try:
        for writers in WRITERS:
            rates: dict[str, list[float]] = {way: [] for way in ways}
            middles: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way in ways if number % 2 else reversed(ways):
                    rate, p50 = run_round(ways[way], writers, max(turns // writers, 4))
                    if number:
                        rates[way].append(rate)
                        middles[way].append(p50)
            ratio = statistics.median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True))
            p50 = statistics.median(o / b for o, b in zip(middles["ours"], middles["bare"], strict=True))
            found |= {
                f"append_ratio_{writers}": round(ratio, 2),
                f"append_p50_ratio_{writers}": round(p50, 2),
            }
            print(
                f"append, {writers} writers: ours {statistics.median(rates['ours']):.0f} turns/s, bare psycopg "
                f"{statistics.median(rates['bare']):.0f} turns/s, ratio {ratio:.2f}; p50 of a turn "
                f"{statistics.median(middles['ours']) * 1e3:.2f} ms to {statistics.median(middles['bare']) * 1e3:.2f} ms, "
                f"ratio {p50:.2f}",
                flush=True,
            )
    finally:
        engine.dispose()
    return found


def run_round(write: Write, writers: int, turns: int) -> tuple[float, float]:
    """Turns per second, and the median of one."""
    took: list[float] = []
    work = [[turn_events(uuid4().hex) for _ in range(turns)] for _ in range(writers)]
    threads = [threading.Thread(target=write, args=(f"conv_{uuid4().hex}", part, took)) for part in work]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(took) / (time.perf_counter() - started), statistics.median(took)


def write_ours(engine: Engine, stream: str, turns: Turns, took: list[float]) -> None:
    version = 0
    for parts in turns:
        started = time.perf_counter()
        for events in parts:
            with engine.begin() as conn:
                version = event_store.append(
                    conn,
                    tenant=TENANT,
                    stream=stream,
                    expected_version=version,
                    events=events,
                    now=datetime.now(UTC),
                )
        took.append(time.perf_counter() - started)


def write_bare(dsn: str, stream: str, turns: Turns, took: list[float]) -> None:
    """The same rows into the same tables, one transaction where ours has one; nothing is checked, chained or hashed."""
    digest, salt, version = b"\0" * 32, b"\0" * SALT_BYTES, 0
    with psycopg.connect(dsn, options="-c role=everturn_fleet") as connection:
        for parts in turns:
            started = time.perf_counter()
            for events in parts:
                for event in events:
                    version += 1
                    row, now = encode(event), datetime.now(UTC)
                    kept = row.content is not None or row.tokens is not None
                    connection.execute(
                        BARE,
                        (
                            *(TENANT, stream, version, row.type, row.schema_number, now),
                            *(to_json_text(row.payload), digest if kept else None, digest),
                        ),
                    )
                    if kept:
                        connection.execute(
                            BARE_CONTENT, (TENANT, stream, version, salt, row.content, row.tokens)
                        )
                connection.commit()
            took.append(time.perf_counter() - started)


def growth_figures(server: EmbeddedPostgres) -> dict[str, float]:
    found: dict[str, float] = {}
    loads: dict[int, float] = {}
    engine = make_engine(server.url(), application_name="bench", pool_size=2)
    try:
        for turns in SIZES:
            before = stored_bytes(server)
            streams = [f"conv_{uuid4().hex}" for _ in range(2000 // turns or 1)]
            for stream in streams:
                write_ours(engine, stream, [turn_events(uuid4().hex) for _ in range(turns)], [])
            per_turn = (stored_bytes(server) - before) / (turns * len(streams))
            with engine.connect() as conn:
                loads[turns] = statistics.median(timed_load(conn, streams[0]) for _ in range(7))
            found[f"bytes_per_turn_{turns}"] = round(per_turn)
            found["bytes_per_token"] = round(per_turn / TURN_TOKENS, 1)
            print(
                f"{turns} turns: {per_turn:.0f} bytes on disk a turn, {per_turn / TURN_TOKENS:.1f} a token "
                f"(indexes, text and chain included); read and folded in {loads[turns] * 1e3:.1f} ms",
                flush=True,
            )
    finally:
        engine.dispose()
    found["plan_time_ratio_1000_vs_10"] = round(loads[1000] / loads[10], 1)
    found["fold_1000_turns_ms"] = round(loads[1000] * 1e3, 1)
    return found


def timed_load(conn: Connection, stream: str) -> float:
    """What planning a turn begins with, and all of it that grows with the history."""
    started = time.perf_counter()
    event_store.load_conversation(conn, TENANT, ConversationId(stream))
    return time.perf_counter() - started


def stored_bytes(server: EmbeddedPostgres) -> int:
    query = "SELECT pg_total_relation_size('events') + pg_total_relation_size('event_contents')"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def audit_figures(server: EmbeddedPostgres, events: int) -> dict[str, float]:
    """Every question of docs/audit.md as it stands there, on a made-up log of that many events."""
    with auditing(server) as conn:
        for step in FILL_STEPS:
            conn.execute(text(step), {"turns": events // 7})
        count = conn.execute(text("SELECT count(*) FROM events")).scalar_one()
        print(f"{count} events", flush=True)
        slowest = 0.0
        for question in questions():
            took = min(timed_query(conn, question.query) for _ in range(2))
            slowest = max(slowest, took)
            print(f"  {took:6.2f} s  {question.number}. {question.question}", flush=True)
    return {"audit_events": count, "slowest_audit_s": round(slowest, 2)}


@contextmanager
def auditing(server: EmbeddedPostgres) -> Iterator[Connection]:
    engine = make_engine(server.url(), application_name="bench-audit", role=None)
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


if __name__ == "__main__":
    main()
