"""Rebuilds through Celery: their rate beside that of the engine's own prefill, and how soon one begins after its message."""

import os
import random
import signal
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.rollout_fleet import BenchFleet, Served
from bench.rollout_load import WORDS
from service.domain.artifact import BootId
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store.connection import make_engine
from tests.workers.prefill_engine import PrefillEngine, serving
from tests.workers.waiting import Waiting, make_waiting, register

LONG_WORDS = 2_030
"""Words of one token each, and what the template adds: 2,048 tokens, which are whole blocks, and a few more, which nobody stores."""
RINGS, KILLS = 60, 4
TIMEOUT_S = 300.0
ROW = """
SELECT tokens_done, CAST(extract(epoch FROM finished_at - created_at) AS float8), state
FROM rebuilds WHERE conversation_id = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Past no stopwatch: a conversation whose history is as long as is wanted."""

    url: str
    key: str
    alias: str
    conversation: str

    def ask(self, text: str, max_tokens: int) -> dict[str, Any]:
        body = {
            "model": self.alias,
            "conversation": self.conversation,
            "input": text,
            "temperature": 0,
            "max_output_tokens": max_tokens,
        }
        return _post(self.url, self.key, "/responses", body)


def long_talk(fleet: BenchFleet, alias: str, seed: object, words: int) -> Talk:
    source = random.Random(f"long {seed}")  # noqa: S311 no secret
    item = {"type": "message", "role": "system", "content": " ".join(source.choices(WORDS, k=words))}
    url, key = fleet.deployment.url, fleet.deployment.keys.tenant_key
    made = _post(url, key, "/conversations", {"items": [item], "alias": alias})
    return Talk(url=url, key=key, alias=alias, conversation=made["id"])


def measure_rebuild_ratio(fleet: BenchFleet, rounds: int) -> float:
    """Tokens a second of a rebuild, from its row to its artifact, over those of the same prefill asked of the engine itself."""
    own, rebuilt = list[float](), list[float]()
    for number in range(rounds):
        alias = f"bench-long-{number}"
        fleet.point(alias, fleet.v12)
        talk = long_talk(fleet, alias, number, LONG_WORDS)
        turn = talk.ask("What of it?", 1)
        window = (*fleet.auditor.prompt(turn["id"]), *fleet.auditor.output(turn["id"]))
        fleet.point(alias, fleet.v13)

        def ask(talk: Talk = talk) -> None:
            talk.ask("And then?", 1)
            [[tokens, seconds, state]] = fleet.rows(ROW, talk.conversation)
            if state != "done":
                raise SystemExit(f"a rebuild ended as '{state}'")
            rebuilt.append(tokens / seconds)

        def prefill(window: tuple[int, ...] = window) -> None:
            own.append(len(window) / _cold_s(fleet.v13, window))

        for measure in (ask, prefill) if number % 2 else (prefill, ask):
            measure()
        print(
            f"{len(window)} tokens: rebuilt {rebuilt[-1]:.0f} tokens/s, by itself {own[-1]:.0f}", flush=True
        )
    return statistics.median(rebuilt) / statistics.median(own)


def _cold_s(engine: Served, window: tuple[int, ...]) -> float:
    began = time.monotonic()
    engine.cold(window, 1)
    return time.monotonic() - began


@dataclass(slots=True)
class TimedEngine(PrefillEngine):
    asked_at: list[float] = field(default_factory=list)

    def generate(self, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked_at.append(time.monotonic())
        # The class is made anew for its slots, so that `super()` without arguments would not do.
        return PrefillEngine.generate(self, headers, body)


def measure_doorbell(fleet: BenchFleet) -> tuple[list[float], list[float]]:
    """Milliseconds from before a message is given to the broker until its worker asks an engine to prefill; and seconds from
    SIGKILL of such a worker's process until another asks again.
    """
    settings = fleet.deployment.settings()
    database = make_engine(settings["EVERTURN_DATABASE_URL"], application_name="bench", pool_size=2)
    doorbell, took, takeovers = Doorbell(settings["EVERTURN_BROKER_URL"]), list[float](), list[float]()
    engine = TimedEngine(boot=BootId("boot_bench"))
    with serving(engine):
        register(database, engine)
        for number in range(RINGS):
            waiting = make_waiting(database)
            began = time.monotonic()
            doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
            _until_ended(waiting)
            if number:  # the first one opens connections
                took.append((engine.asked_at[-1] - began) * 1000)
        for _ in range(KILLS):
            engine.go.clear()
            waiting, asked = make_waiting(database), len(engine.asked_at)
            doorbell.ring(waiting.rebuild, RebuildQueue.INTERACTIVE)
            while len(engine.asked_at) == asked:
                time.sleep(0.01)
            os.kill(int((waiting.row().owner or "").rpartition(":")[2]), signal.SIGKILL)
            killed = time.monotonic()
            while len(engine.asked_at) == asked + 1:
                time.sleep(0.01)
            takeovers.append(engine.asked_at[-1] - killed)
            engine.go.set()
            _until_ended(waiting)
    doorbell.close()
    database.dispose()
    return took, takeovers


def _until_ended(waiting: Waiting) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not waiting.ended():
        if time.monotonic() > deadline:
            raise SystemExit(f"rebuild {waiting.rebuild} is still {waiting.row().state}")
        time.sleep(0.01)


def _post(url: str, key: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{url}/v1{path}", json=body, headers=headers, timeout=TIMEOUT_S, trust_env=False)
    document: dict[str, Any] = answer.raise_for_status().json()
    return document
