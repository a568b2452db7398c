"""A real deployment with v12 and v13 of the demo's model, for benchmarks that go through the service."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from demo.auditor import Auditor
from stack.deployment import Deployment, EngineSpec
from stack.ports import find_free_port
from stack.process import Child
from stack.progress import Progress

TIMEOUT_S = 300.0
REBUILT = {"EVERTURN_REBUILD_MIN_TOKENS": "64"}
"""Also what is shorter than is worth it: how long that takes is in question here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    process: Child
    revision: str
    address: str
    model: Path

    def cold(self, prompt: Sequence[int], max_tokens: int, *, salt: str | None = None) -> tuple[int, ...]:
        """Greedy, on nothing stored and, but under a salt that it has seen, on nothing that the engine has in memory."""
        answer = self._generate(prompt, {"max_tokens": max_tokens, "temperature": 0}, salt)
        return tuple(answer["choices"][0]["token_ids"])

    def most_likely(self, tokens: Sequence[int]) -> tuple[int | None, ...]:
        """For each place the token that the model would have put there, after what stands before it; None for the first. Prefilled cold."""
        told = self._generate(tokens, {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}, None)
        return tuple(None if place is None else _first(place) for place in told["prompt_logprobs"])

    def _generate(self, prompt: Sequence[int], sampling: dict[str, Any], salt: str | None) -> dict[str, Any]:
        body = {
            "token_ids": list(prompt),
            "sampling_params": sampling,
            "cache_salt": salt or secrets.token_hex(8),
        }
        answer = httpx.post(
            f"{self.address}/inference/v1/generate", json=body, timeout=TIMEOUT_S, trust_env=False
        )
        document: dict[str, Any] = answer.raise_for_status().json()
        return document


def _first(place: dict[str, dict[str, Any]]) -> int:
    return next(int(token) for token, told in place.items() if told["rank"] == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFleet:
    deployment: Deployment
    v12: Served
    v13: Served

    @property
    def auditor(self) -> Auditor:
        return Auditor(self.deployment.database_dsn())

    def point(self, alias: str, engine: Served) -> None:
        self.deployment.admin("PUT", f"/aliases/{alias}", {"revision": engine.revision, "by": "bench"})

    def engine_of(self, revision: str) -> Served:
        return next(engine for engine in (self.v12, self.v13) if engine.revision == revision)

    def rows(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        """As the superuser."""
        with psycopg.connect(self.deployment.database_dsn()) as connection:
            return connection.execute(query.encode(), given).fetchall()


@contextmanager
def bench_fleet(folder: Path, v12: Path, v13: Path) -> Iterator[BenchFleet]:
    with (
        (folder / "progress").open("w") as log,
        Deployment(
            folder / "stack",
            port=find_free_port(),
            progress=Progress(stream=log),
            environment=os.environ | REBUILT,
        ) as deployment,
    ):
        engines = [
            _serve(deployment, name, model, core)
            for name, model, core in (("v12", v12, "0"), ("v13", v13, "1"))
        ]
        yield BenchFleet(deployment=deployment, v12=engines[0], v13=engines[1])


def _serve(deployment: Deployment, name: str, model: Path, core: str) -> Served:
    port = find_free_port()
    process = deployment.start_engine(EngineSpec(name=name, model=model, port=port, cores=core))
    engines = deployment.admin("GET", "/engines")["data"]
    if not isinstance(engines, list):
        raise TypeError("GET /admin/engines must answer with a list")
    engine = next(e for e in engines if e["address"].endswith(f":{port}"))
    return Served(process=process, revision=engine["revision"], address=engine["address"], model=model)
