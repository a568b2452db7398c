"""Events in one table, and in hash partitions by conversation: what inserting and reading a conversation cost.

`python -m bench.partitions --events 2000000`; the last line is one JSON object.
"""

import argparse
import json
import tempfile
import time
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


def measure(connection: psycopg.Connection, name: str, events: int) -> dict[str, float]:
    conversations = events // EVENTS_PER_CONVERSATION
    fields = {"name": sql.Identifier(name), "conversations": sql.Literal(conversations)}
    began = time.perf_counter()
    for first in range(0, events, BATCH):
        connection.execute(sql.SQL(FILL).format(**fields), [first, min(first + BATCH, events) - 1])
    filled_s = time.perf_counter() - began
    connection.execute(sql.SQL("VACUUM ANALYZE {name}").format(**fields))
    chance = Random(1)  # noqa: S311 no secret
    found: dict[str, list[float]] = {"read": [], "append": []}
    for kind, query, times in (("read", READ, READS), ("append", APPEND, APPENDS)):
        statement = sql.SQL(query).format(**fields)
        for _ in range(times):
            number = chance.randrange(conversations)
            stream = connection.execute("SELECT 'conv_' || md5(%s)", [str(number)]).fetchone()
            key = [f"tenant-{number % 20}", stream[0] if stream else ""]
            began = time.perf_counter()
            connection.execute(statement, key * (2 if kind == "append" else 1))
            found[kind].append(time.perf_counter() - began)
    size = connection.execute(
        "SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(%s::regclass)),"
        " pg_total_relation_size(%s::regclass))::bigint",
        [name, name],
    ).fetchone()
    return {
        "fill_events_per_s": round(events / filled_s),
        **{f"{kind}_p50_ms": round(sorted(times)[len(times) // 2] * 1e3, 3) for kind, times in found.items()},
        **{
            f"{kind}_p99_ms": round(sorted(times)[len(times) * 99 // 100] * 1e3, 3)
            for kind, times in found.items()
        },
        "bytes_per_event": round((size[0] if size else 0) / events),
    }


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
            measured = {name: measure(connection, name, events) for name in ways}
    for name, numbers in measured.items():
        print(name, numbers)
    print(json.dumps({"events": events, "partitions": PARTITIONS, **measured}))


if __name__ == "__main__":
    main()
