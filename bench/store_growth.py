"""What a conversation costs as it grows: bytes on disk, the plan of its next turn, and reading it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import psycopg
from sqlalchemy import Connection, Engine

from bench.store_append import TENANT, service_engine, write_ours
from bench.store_history import BOOT, TURN_TOKENS, Turn, history
from service.api.database import Reach, limit
from service.domain.artifact import ArtifactId, MadeBy
from service.domain.events import ConversationId
from service.domain.evidence import Published
from service.domain.revision import RevisionDigest
from service.domain.transcript import Transcript
from service.store import artifacts, event_store, heads
from service.store.connection import make_engine
from service.store.new_ids import new_id
from stack.postgres import EmbeddedPostgres
from tests.flows.fleet import NOW, Running, add_engine, move_alias, plan

SIZES = (10, 200, 1000)
LONG = 500
"""Turns, of 100,000 tokens."""
PLANS = 31


def growth_figures(server: EmbeddedPostgres) -> dict[str, float]:
    engine = service_engine(server)
    try:
        revision = serve(server)
        found: dict[str, float] = {}
        for turns in SIZES:
            per_turn = written(server, engine, turns)
            found[f"bytes_per_turn_{turns}"] = round(per_turn)
            found["bytes_per_token"] = round(per_turn / TURN_TOKENS, 1)
            print(
                f"{turns} turns: {per_turn:.0f} bytes on disk a turn, {per_turn / TURN_TOKENS:.1f} a token "
                "(indexes, text and chain included)",
                flush=True,
            )
        return found | plan_figures(server, engine, revision) | read_figures(engine, revision)
    finally:
        engine.dispose()


def serve(server: EmbeddedPostgres) -> RevisionDigest:
    """One engine, which the alias points at."""
    fleet = make_engine(server.url(), application_name="bench")
    with fleet.begin() as conn:
        revision = add_engine(conn, "a", "boot_1")
        move_alias(conn, revision)
    fleet.dispose()
    return revision


def written(server: EmbeddedPostgres, engine: Engine, turns: int) -> float:
    """Bytes a turn, of as many conversations of that length as are 2,000 turns together."""
    before, conversations = stored_bytes(server), 2000 // turns or 1
    for _ in range(conversations):
        write_ours(engine, new_id("conv_"), list(history(turns)), [])
    return (stored_bytes(server) - before) / (turns * conversations)


def plan_figures(server: EmbeddedPostgres, engine: Engine, revision: RevisionDigest) -> dict[str, float]:
    """The transaction that plans and pins a turn after 10 and after 1,000, alternating; each is rolled back.

    It also reads what the engine is to render, which grows with the history by nature: measured by itself, and taken off.
    """
    running = {turns: accepted(engine, turns, revision) for turns in (SIZES[0], SIZES[-1])}
    took: dict[int, list[float]] = {turns: [] for turns in running}
    read: dict[int, list[float]] = {turns: [] for turns in running}
    serve(server)
    for number in range(PLANS):
        for turns, waiting in running.items():
            with timed_transcripts() as reads:
                seconds = rolled_back(engine, partial(plan, running=waiting))
            if number:
                took[turns].append(seconds - sum(reads))
                read[turns].append(sum(reads))
    middle = {turns: statistics.median(times) for turns, times in took.items()}
    ratio = middle[SIZES[-1]] / middle[SIZES[0]]
    shown = ", ".join(f"{seconds * 1e3:.2f} ms after {turns} turns" for turns, seconds in middle.items())
    print(f"plan and pin: {shown}; ratio {ratio:.2f}", flush=True)
    found = {f"plan_ms_{turns}": round(seconds * 1e3, 2) for turns, seconds in middle.items()}
    found |= {f"read_ms_{turns}": round(statistics.median(times) * 1e3, 2) for turns, times in read.items()}
    return found | {"plan_time_ratio_1000_vs_10": round(ratio, 2)}


@contextmanager
def timed_transcripts() -> Iterator[list[float]]:
    took: list[float] = []

    def load(*whose: Any) -> Transcript:
        began = time.monotonic()
        try:
            return original(*whose)
        finally:
            took.append(time.monotonic() - began)

    original = heads.load_transcript
    with mock.patch.object(heads, "load_transcript", load):
        yield took


def accepted(engine: Engine, answered: int, revision: RevisionDigest) -> Running:
    """A conversation with so many answers and as many artifacts, whose next turn waits for its plan."""
    told: list[Turn] = list(history(answered + 1, revision))
    stream, version = new_id("conv_"), 0
    with engine.begin() as conn:
        limit(conn, Reach(tenant=TENANT))
        for events in (
            *(part for turn in told[:-1] for part in (turn.accepted, turn.completed)),
            told[-1].accepted,
        ):
            version = event_store.append(
                conn, tenant=TENANT, stream=stream, expected_version=version, events=events, now=NOW
            )
        for number in range(answered):
            kept = published(revision, (number + 1) * TURN_TOKENS)
            artifacts.record(
                conn,
                tenant=TENANT,
                conversation=ConversationId(stream),
                published=kept,
                now=NOW + timedelta(seconds=number),
            )
    return Running(conversation=ConversationId(stream), turn=told[-1].id)


def published(revision: RevisionDigest, tokens: int) -> Published:
    return Published(
        artifact=ArtifactId(new_id("kv_")),
        revision=revision,
        producer=BOOT,
        made_by=MadeBy.DECODE,
        tokens=tokens,
        blocks=tokens,
        bytes=tokens,
        expires_ms=4_000_000_000_000,
        tip="ab" * 32,
    )


def read_figures(engine: Engine, revision: RevisionDigest) -> dict[str, float]:
    """What grows with the history by nature: what its next prompt is made of, and the fold of all of it."""
    stream = accepted(engine, LONG, revision).conversation
    longest = accepted(engine, SIZES[-1], revision).conversation
    ways: dict[str, Callable[[Connection], object]] = {
        "transcript_100k_tokens_ms": lambda conn: heads.load_transcript(conn, TENANT, stream),
        "window_100k_tokens_ms": lambda conn: heads.load_window(conn, TENANT, stream),
        "fold_1000_turns_ms": lambda conn: event_store.load_conversation(conn, TENANT, longest),
    }
    found = {
        name: round(min(rolled_back(engine, way) for _ in range(7)) * 1e3, 1) for name, way in ways.items()
    }
    print(f"reading a history: {found}", flush=True)
    return found


def rolled_back(engine: Engine, transaction: Callable[[Connection], object]) -> float:
    with engine.connect() as conn:
        limit(conn, Reach(tenant=TENANT))
        started = time.perf_counter()
        transaction(conn)
        seconds = time.perf_counter() - started
        conn.rollback()
    return seconds


def stored_bytes(server: EmbeddedPostgres) -> int:
    query = "SELECT pg_total_relation_size('events') + pg_total_relation_size('event_contents')"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
