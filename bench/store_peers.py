"""The store beside its peers: `eventsourcing` and `langgraph-checkpoint-postgres`, on the same server and with the same turns.

They live in an environment of their own, .everturn/peers, made on the first run; where that cannot be made, they are left out.
"""

import json
import statistics
import subprocess
import sys
from base64 import b64encode
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from bench.store_append import run_round, service_engine, write_ours
from bench.store_growth import stored_bytes
from bench.store_history import Text, Turn, history, letters, words
from service.domain.events import Event, MessageAccepted, TurnCompleted
from service.store.codec import encode, to_json_text
from service.store.new_ids import new_id
from stack.postgres import EmbeddedPostgres

HOME = Path(".everturn/peers")
PACKAGES = ("eventsourcing[postgres]==9.5.6", "langgraph==1.2.24", "langgraph-checkpoint-postgres==3.2.0")
WRITERS = (1, 16)
WAYS = ("eventsourcing", "langgraph", "langgraph_delta")
GRAPHS = WAYS[1:]
PER_CONVERSATION, LONG, CONVERSATIONS = 20, 200, 2
LANGGRAPH_BYTES = """
    SELECT sum(pg_total_relation_size(name)) FROM unnest(ARRAY['checkpoints', 'checkpoint_blobs', 'checkpoint_writes']) AS name
"""


class Peers(AbstractContextManager["Peers"]):
    """The process with the peers; it measures itself, since a pipe is no part of what they cost."""

    def __init__(self, dsn: str) -> None:
        self._process = subprocess.Popen(
            [str(HOME / "bin/python"), "bench/peer_worker.py", dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)

    def run(self, way: str, work: Sequence[Sequence[Turn]]) -> dict[str, float]:
        asked = {"way": way, "work": [[plain(turn) for turn in part] for part in work]}
        if self._process.stdin is None:
            raise SystemExit("The peers' process takes no work.")
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("The peers' process ended; what it said stands above.")
        found: dict[str, float] = json.loads(line)
        return found


def peer_figures(server: EmbeddedPostgres, rounds: int) -> dict[str, float]:
    if (why := make_environment()) is not None:
        print(f"peers are left out: {why}", flush=True)
        return {}
    with Peers(server.dsn()) as peers:
        found = speed_figures(server, peers, rounds)
        for kind, text in {"words": words, "letters": letters}.items():
            found |= size_figures(server, peers, kind, text)
    # The aim was set on a text that does not compress.
    return found | {"langgraph_size_ratio_200": found["langgraph_size_ratio_200_letters"]}


def make_environment() -> str | None:
    """None once it is there; else the reason why it is not."""
    stamp, wanted = HOME / "packages", "\n".join(PACKAGES)
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    print(f"making {HOME} for the peers (a minute, once)", flush=True)
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(HOME)],
        [str(HOME / "bin/python"), "-m", "pip", "install", "--quiet", "psycopg[binary]", *PACKAGES],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    stamp.write_text(wanted)
    return None


def speed_figures(server: EmbeddedPostgres, peers: Peers, rounds: int) -> dict[str, float]:
    """Turns per second of ours over those of each peer: medians over rounds of all of them."""
    engine, found = service_engine(server), dict[str, float]()
    for writers in WRITERS:
        rates = dict[str, list[float]]({way: [] for way in ("ours", *WAYS)})
        for _ in range(rounds):
            ours, _ = run_round(lambda s, w, t: write_ours(engine, s, w, t), writers, PER_CONVERSATION)
            rates["ours"].append(ours)
            for way in WAYS:
                work = [list(history(PER_CONVERSATION)) for _ in range(writers)]
                rates[way].append(peers.run(way, work)["rate"])
        middle = {way: statistics.median(of[1:]) for way, of in rates.items()}  # the first warms up
        shown = ", ".join(f"{way} {rate:.0f}" for way, rate in middle.items())
        print(f"turns/s, {writers} writers, {PER_CONVERSATION} turns a conversation: {shown}", flush=True)
        ratios = {way: round(middle["ours"] / middle[way], 2) for way in WAYS}
        found |= {f"{way}_speed_ratio_{writers}": ratio for way, ratio in ratios.items()}
    engine.dispose()
    return found


def size_figures(server: EmbeddedPostgres, peers: Peers, kind: str, text: Text) -> dict[str, float]:
    """Bytes on disk of conversations of 200 turns, indexes and all; ours hold the token ids as well."""
    engine = service_engine(server)
    told = [list(history(LONG, text=text)) for _ in range(CONVERSATIONS)]
    text_bytes = sum(len(plain(turn)["question"] + plain(turn)["answer"]) for turn in told[0])
    sizes, last = {"ours": -stored_bytes(server)}, dict[str, float]()
    for turns in told:
        write_ours(engine, new_id("conv_"), turns, [])
    sizes["ours"] += stored_bytes(server)
    engine.dispose()
    for way in GRAPHS:
        sizes[way] = -relation_bytes(server)
        for turns in told:
            last[way] = peers.run(way, [turns])["last"]
        sizes[way] += relation_bytes(server)
    print(
        f"{LONG} turns, {text_bytes / 1e3:.0f} kB of {kind}: "
        + ", ".join(f"{way} {size / 1e6 / CONVERSATIONS:.2f} MB" for way, size in sizes.items())
        + "; the last turn took "
        + ", ".join(f"{way} {seconds * 1e3:.1f} ms" for way, seconds in last.items()),
        flush=True,
    )
    return {f"{way}_size_ratio_{LONG}_{kind}": round(sizes[way] / sizes["ours"], 1) for way in GRAPHS}


def plain(turn: Turn) -> dict[str, Any]:
    question = next(e.text for e in turn.accepted if isinstance(e, MessageAccepted))
    answer = next(e.text for e in turn.completed if isinstance(e, TurnCompleted))
    return {
        "question": question,
        "answer": answer,
        "accepted": [row(event) for event in turn.accepted],
        "completed": [row(event) for event in turn.completed],
    }


def row(event: Event) -> dict[str, str]:
    made = encode(event)
    return {
        "type": made.type,
        "payload": to_json_text(made.payload),
        "content": b64encode(made.content or b"").decode(),
        "tokens": b64encode(made.tokens or b"").decode(),
    }


def relation_bytes(server: EmbeddedPostgres) -> int:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        found = connection.execute(LANGGRAPH_BYTES).fetchone()
    return int(found[0]) if found and found[0] is not None else 0
