"""Events in one table, and in hash partitions by conversation: what inserting and reading a conversation cost.

Both are filled in turns of a batch, and read and appended to in turns of one conversation, so that a busy machine slows both alike.
`python -m bench.partitions --events 10000000`; the last line is one JSON object.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
from psycopg import sql

from stack.postgres import EmbeddedPostgres

EVENTS_PER_CONVERSATION = 40
BATCH = 40_000
READS = 2000
APPENDS = 3000
PARTITIONS = 32

TABLE = """
    CREATE TABLE {name} (
        position bigint NOT NULL, tenant_id text NOT NULL, stream text NOT NULL, stream_version bigint NOT NULL,
        type text NOT NULL, payload jsonb NOT NULL, chain bytea NOT NULL, txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
        UNIQUE (tenant_id, stream, stream_version)
    ) {how}
"""
FILL = """
    INSERT INTO {name} (position, tenant_id, stream, stream_version, type, payload, chain)
    SELECT n, 'tenant-' || conversation %% 20, 'conv_' || md5(conversation::text), 1 + n / {conversations} ,
           'message.accepted', jsonb_build_object('item', md5(n::text), 'role', 'user', 'plan', repeat('x', 120)),
           sha256(n::text::bytea)
    FROM generate_series(%s, %s) AS n, LATERAL (SELECT n %% {conversations}) AS of (conversation)
"""
READ = "SELECT payload FROM {name} WHERE tenant_id = %s AND stream = %s ORDER BY stream_version"
APPEND = """
    INSERT INTO {name} (position, tenant_id, stream, stream_version, type, payload, chain)
    SELECT 0, %s, %s, coalesce(max(stream_version), 0) + 1, 'turn.started', '{{}}', sha256('x')
    FROM {name} WHERE tenant_id = %s AND stream = %s
"""


@dataclass(slots=True)
class Way:
    """One of the two tables, and what it took, in seconds."""

    name: str
    filled_s: float = 0.0
    took: dict[str, list[float]] = field(default_factory=lambda: {"read": [], "append": []})

    def figures(self, events: int, size: int) -> dict[str, float]:
        found: dict[str, float] = {"fill_events_per_s": round(events / self.filled_s)}
        for kind, times in self.took.items():
            found[f"{kind}_p50_ms"] = round(sorted(times)[len(times) // 2] * 1e3, 3)
            found[f"{kind}_p99_ms"] = round(sorted(times)[len(times) * 99 // 100] * 1e3, 3)
        return found | {"bytes_per_event": round(size / events)}


def measure(connection: psycopg.Connection, ways: list[Way], events: int) -> dict[str, dict[str, float]]:
    conversations = events // EVENTS_PER_CONVERSATION
    fill(connection, ways, events, conversations)
    chance = Random(1)  # noqa: S311 no secret
    for kind, query, times in (("read", READ, READS), ("append", APPEND, APPENDS)):
        for turn in range(times):
            number = chance.randrange(conversations)
            stream = connection.execute("SELECT 'conv_' || md5(%s)", [str(number)]).fetchone()
            key = [f"tenant-{number % 20}", stream[0] if stream else ""] * (2 if kind == "append" else 1)
            for way in ways if turn % 2 else reversed(ways):
                began = time.perf_counter()
                connection.execute(sql.SQL(query).format(name=sql.Identifier(way.name)), key)
                way.took[kind].append(time.perf_counter() - began)
    return {way.name: way.figures(events, size_of(connection, way.name)) for way in ways}


def fill(connection: psycopg.Connection, ways: list[Way], events: int, conversations: int) -> None:
    for first in range(0, events, BATCH):
        for way in ways:
            statement = sql.SQL(FILL).format(
                name=sql.Identifier(way.name), conversations=sql.Literal(conversations)
            )
            began = time.perf_counter()
            connection.execute(statement, [first, min(first + BATCH, events) - 1])
            way.filled_s += time.perf_counter() - began
    for way in ways:
        connection.execute(sql.SQL("VACUUM ANALYZE {name}").format(name=sql.Identifier(way.name)))


def size_of(connection: psycopg.Connection, name: str) -> int:
    size = connection.execute(
        "SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(%s::regclass)),"
        " pg_total_relation_size(%s::regclass))::bigint",
        [name, name],
    ).fetchone()
    return int(size[0]) if size else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory(prefix="everturn-bench-") as folder:
        Path(folder).chmod(0o711)
        with (
            EmbeddedPostgres(Path(folder) / "postgres", durable=False) as server,
            psycopg.connect(server.dsn(), autocommit=True, options="-c statement_timeout=0") as connection,
        ):
            ways = {"whole": "", "parted": "PARTITION BY HASH (tenant_id, stream)"}
            for name, how in ways.items():
                connection.execute(sql.SQL(TABLE).format(name=sql.Identifier(name), how=sql.SQL(how)))
            for number in range(PARTITIONS):
                part = sql.SQL(
                    "CREATE TABLE {part} PARTITION OF parted FOR VALUES WITH (MODULUS {all}, REMAINDER {this})"
                ).format(
                    part=sql.Identifier(f"parted_{number}"),
                    all=sql.Literal(PARTITIONS),
                    this=sql.Literal(number),
                )
                connection.execute(part)
            measured = measure(connection, [Way(name) for name in ways], events)
    for name, numbers in measured.items():
        print(name, numbers)
    print(json.dumps({"events": events, "partitions": PARTITIONS, **measured}))


if __name__ == "__main__":
    main()
