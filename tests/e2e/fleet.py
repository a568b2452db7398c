"""A real deployment with v12 and v13 of the demo's model, and a client that talks to it as any client would."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from demo.auditor import Auditor
from demo.checkpoints import Checkpoints
from demo.conversation import SYSTEM
from demo.reference import Answer, Reference
from stack.deployment import Deployment, EngineSpec
from stack.ports import find_free_port
from stack.progress import Progress

MAX_TOKENS = 12
REBUILT = {"EVERTURN_REBUILD_MIN_TOKENS": "64"}
"""As short a history as the tests tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    deployment: Deployment
    v12: dict[str, Any]
    v13: dict[str, Any]

    @property
    def auditor(self) -> Auditor:
        return Auditor(self.deployment.database_dsn())

    def point(self, alias: str, engine: dict[str, Any]) -> None:
        self.deployment.admin("PUT", f"/aliases/{alias}", {"revision": engine["revision"], "by": "test"})

    def rollout(self, rollout: str) -> dict[str, Any]:
        return {**self.deployment.admin("GET", f"/rollouts/{rollout}")}

    def wait_for_rollout(self, rollout: str, **told: object) -> None:
        deadline = time.monotonic() + 30
        while (found := self.rollout(rollout)) != found | told:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def chat(self, alias: str) -> "Chat":
        return Chat(url=self.deployment.url, key=self.deployment.keys.tenant_key, alias=alias).opened()

    def cold(self, engine: dict[str, Any], turn: dict[str, Any]) -> Answer:
        """What the engine says to the exact window of that turn, prefilled from nothing."""
        return Reference(address=engine["address"]).generate(
            self.auditor.prompt(turn["id"]), max_tokens=MAX_TOKENS
        )

    def output(self, turn: dict[str, Any]) -> tuple[int, ...]:
        return self.auditor.output(turn["id"])

    def count(self, query: str, conversation: str) -> int:
        with psycopg.connect(self.deployment.database_dsn()) as connection:
            row = connection.execute(query.encode(), [conversation]).fetchone()
        assert row is not None
        return int(row[0])

    def wait_for_rebuild(self, conversation: str, state: str) -> None:
        query = f"SELECT count(*) FROM rebuilds WHERE conversation_id = %s AND state = '{state}'"  # noqa: S608 ours
        deadline = time.monotonic() + 30
        while not self.count(query, conversation):
            assert time.monotonic() < deadline, f"no rebuild is {state}"
            time.sleep(0.05)

    def wait_for_artifacts(self, conversation: str, count: int) -> None:
        """A turn's answer does not wait for its KV to be stored."""
        deadline = time.monotonic() + 30
        while self.count("SELECT count(*) FROM artifacts WHERE conversation_id = %s", conversation) < count:
            assert time.monotonic() < deadline, f"fewer than {count} artifacts"
            time.sleep(0.05)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.deployment.database_dsn()) as connection:
            return connection.execute(statement.encode()).fetchall()

    def execute(self, statement: str) -> None:
        """As the superuser."""
        with psycopg.connect(self.deployment.database_dsn()) as connection:
            connection.execute(statement.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    url: str
    key: str
    alias: str
    id: str = ""

    def opened(self) -> "Chat":
        item = {"type": "message", "role": "system", "content": SYSTEM}
        return replace(
            self, id=self._call("POST", "/conversations", {"items": [item], "alias": self.alias})["id"]
        )

    def say(self, text: str, **extra: object) -> dict[str, Any]:
        document = self._call("POST", "/responses", self._body(text) | extra)
        assert document["status"] in ("completed", "incomplete"), document
        return document

    def stream(self, text: str) -> Iterator[tuple[str, str]]:
        """Event name and data, as they come."""
        body = self._body(text) | {"stream": True}
        url, headers = f"{self.url}/v1/responses", self._headers()
        with httpx.stream("POST", url, json=body, headers=headers, timeout=180) as answer:
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, line.removeprefix("data: ")

    def messages(self) -> list[dict[str, str]]:
        items = self._call("GET", f"/conversations/{self.id}/items?order=asc&limit=100")["data"]
        return [{"role": i["role"], "content": i["content"][0]["text"]} for i in items]

    def _call(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        url = f"{self.url}/v1{path}"
        answer = httpx.request(method, url, json=body, headers=self._headers(), timeout=180)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def _body(self, text: str) -> dict[str, object]:
        return {
            "model": self.alias,
            "conversation": self.id,
            "input": text,
            "temperature": 0,
            "max_output_tokens": MAX_TOKENS,
        }


@contextmanager
def running_fleet(folder: Path, checkpoints: Checkpoints, scratch: dict[str, str]) -> Iterator[Fleet]:
    with (
        folder.with_suffix(".progress").open("w") as log,
        Deployment(
            folder,
            port=find_free_port(),
            progress=Progress(stream=log),
            environment=os.environ | REBUILT | scratch,
        ) as deployment,
    ):
        engines = [
            _serve(deployment, name, model, core)
            for name, model, core in (("v12", checkpoints.v12, "0"), ("v13", checkpoints.v13, "1"))
        ]
        yield Fleet(deployment=deployment, v12=engines[0], v13=engines[1])


def _serve(deployment: Deployment, name: str, model: Path, core: str) -> dict[str, Any]:
    port = find_free_port()
    # Every reuse seen here comes from the store.
    options = ["--no-enable-prefix-caching"]
    deployment.start_engine(EngineSpec(name=name, model=model, port=port, cores=core, options=options))
    engines = deployment.admin("GET", "/engines")["data"]
    assert isinstance(engines, list)
    engine: dict[str, Any] = next(e for e in engines if e["address"].endswith(f":{port}"))
    return engine


@contextmanager
def frozen(engine: dict[str, Any]) -> Iterator[None]:
    """The processes that serve this engine's port take no step: a prefill sent to it goes on only afterwards."""
    tree = process_tree(server_of(engine))
    for process in tree:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in tree:
            with suppress(psutil.NoSuchProcess):  # killed meanwhile
                process.send_signal(signal.SIGCONT)


def server_of(engine: dict[str, Any]) -> int:
    """The process that serves this engine's port."""
    port = int(engine["address"].rsplit(":", 1)[1])
    return next(
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.laddr
        and connection.laddr.port == port
        and connection.status == psutil.CONN_LISTEN
        and connection.pid
    )


def process_tree(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def kill_tree(pid: int) -> None:
    tree = process_tree(pid)
    for process in tree:
        process.kill()
