"""One turn's two transactions: through the store as the API uses it, and as bare inserts of the same rows."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import psycopg
from sqlalchemy import Engine

from bench.store_history import Turn, history
from service.api.database import Reach, limits
from service.domain.events import TenantId
from service.store import event_store
from service.store.chain import SALT_BYTES
from service.store.codec import encode, to_json_text
from service.store.connection import BEGIN_WITH, SERVICE_ROLE, make_engine
from service.store.new_ids import new_id
from stack.postgres import EmbeddedPostgres

TENANT = TenantId("acme")
WRITERS = (1, 4, 16)
BARE = """
INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment, chain)
VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s)
"""
BARE_CONTENT = """
INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens) VALUES (%s, %s, %s, %s, %s, %s)
"""

Write = Callable[[str, Sequence[Turn], list[float]], None]


def append_figures(server: EmbeddedPostgres, rounds: int, turns: int) -> dict[str, float]:
    """Ratios are medians over rounds; in each, both take their turn."""
    engine = service_engine(server)
    ways: dict[str, Write] = {
        "bare": lambda stream, work, took: write_bare(server.dsn(), stream, work, took),
        "ours": lambda stream, work, took: write_ours(engine, stream, work, took),
    }
    found: dict[str, float] = {}
    try:
        for writers in WRITERS:
            rates: dict[str, list[float]] = {way: [] for way in ways}
            middles: dict[str, list[float]] = {way: [] for way in ways}
            # The first round warms both up.
            for number in range(rounds + 1):
                for way in ways if number % 2 else reversed(ways):
                    rate, p50 = run_round(ways[way], writers, max(turns // writers, 4))
                    if number:
                        rates[way].append(rate)
                        middles[way].append(p50)
            found |= told(writers, rates, middles)
    finally:
        engine.dispose()
    return found


def told(writers: int, rates: dict[str, list[float]], middles: dict[str, list[float]]) -> dict[str, float]:
    ratio = statistics.median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True))
    p50 = statistics.median(o / b for o, b in zip(middles["ours"], middles["bare"], strict=True))
    print(
        f"append, {writers} writers: ours {statistics.median(rates['ours']):.0f} turns/s, bare psycopg "
        f"{statistics.median(rates['bare']):.0f} turns/s, ratio {ratio:.2f}; p50 of a turn "
        f"{statistics.median(middles['ours']) * 1e3:.2f} ms to {statistics.median(middles['bare']) * 1e3:.2f} ms, "
        f"ratio {p50:.2f}",
        flush=True,
    )
    return {f"append_ratio_{writers}": round(ratio, 2), f"append_p50_ratio_{writers}": round(p50, 2)}


def run_round(write: Write, writers: int, turns: int) -> tuple[float, float]:
    """Turns per second, and the median of one."""
    took: list[float] = []
    work = [list(history(turns)) for _ in range(writers)]
    threads = [threading.Thread(target=write, args=(new_id("conv_"), part, took)) for part in work]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(took) / (time.perf_counter() - started), statistics.median(took)


def service_engine(server: EmbeddedPostgres) -> Engine:
    """As the API connects: under the role whose rows are one tenant's."""
    return make_engine(server.url(), application_name="bench", pool_size=max(WRITERS), role=SERVICE_ROLE)


def write_ours(engine: Engine, stream: str, turns: Sequence[Turn], took: list[float]) -> None:
    version, own = 0, engine.execution_options(**{BEGIN_WITH: limits(Reach(tenant=TENANT))})
    for turn in turns:
        started = time.perf_counter()
        for events in (turn.accepted, turn.completed):
            with own.begin() as conn:
                version = event_store.append(
                    conn,
                    tenant=TENANT,
                    stream=stream,
                    expected_version=version,
                    events=events,
                    now=datetime.now(UTC),
                )
        took.append(time.perf_counter() - started)


def write_bare(dsn: str, stream: str, turns: Sequence[Turn], took: list[float]) -> None:
    """The same rows into the same tables, one transaction where ours has one; nothing is checked, chained or hashed."""
    digest, salt, version = b"\0" * 32, b"\0" * SALT_BYTES, 0
    with psycopg.connect(dsn, options="-c role=everturn_fleet") as connection:
        for turn in turns:
            started = time.perf_counter()
            for events in (turn.accepted, turn.completed):
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
