"""The real API over real HTTP on a real database, with simulated engines and the real rebuild in a thread."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
from openai import OpenAI
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from service import rollout_flow
from service.api.app import create_app
from service.domain.conversation import Conversation
from service.domain.errors import Unavailable
from service.domain.events import ConversationId, Event, TenantId
from service.domain.plan import RebuildQueue
from service.domain.revision import RevisionDigest
from service.rollout_flow import Secrets
from service.settings import Settings
from service.store import artifacts, event_store, fleet, keys
from service.store.connection import make_engine
from tests.engines.http_server import HttpServer
from tests.engines.simulated import SimulatedEngine, Stored
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild
from workers.turn_work import run_turn

TENANT = TenantId("acme")
PATIENCE_S = 60.0
HEARTBEAT_S = 0.5


@dataclass(slots=True, kw_only=True)
class Bell:
    work: Callable[[str], object]
    rung: list[str] = field(default_factory=list)
    broken: bool = False
    unheard: bool = False

    def ring(self, rebuild: str, _queue: RebuildQueue) -> None:
        self.rung.append(rebuild)
        if self.broken:
            raise Unavailable("the broker is down")
        if not self.unheard:
            self.work(rebuild)


@dataclass(slots=True, kw_only=True)
class TurnBell:
    """Of the turns that wait for a worker."""

    work: Callable[[str], object]
    rung: list[str] = field(default_factory=list)
    unheard: bool = False

    def ring(self, turn: str) -> None:
        self.rung.append(turn)
        if not self.unheard:
            self.work(turn)


@dataclass(slots=True, kw_only=True)
class Stack:
    url: str
    secrets: Secrets
    settings: Settings
    database: Engine
    """As the service connects."""
    owner: Engine
    """With every right there is."""
    server: HttpServer
    new_server: Callable[[], HttpServer]
    exits: ExitStack
    bell: "Bell"
    turn_bell: "TurnBell"
    store: dict[str, Stored] = field(default_factory=dict)
    engines: list[SimulatedEngine] = field(default_factory=list)
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    @property
    def rung(self) -> list[str]:
        return self.bell.rung

    @property
    def http(self) -> httpx.Client:
        return self.client(self.secrets.tenant)

    @property
    def admin(self) -> httpx.Client:
        return self.client(self.secrets.operator)

    @property
    def openai(self) -> OpenAI:
        made = OpenAI(base_url=f"{self.url}/v1", api_key=self.secrets.tenant, max_retries=0)
        self.exits.callback(made.close)
        return made

    def client(self, key: str) -> httpx.Client:
        if key not in self.clients:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            made = httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False)  # noqa: S501 no TLS here
            self.clients[key] = self.exits.enter_context(made)
        return self.clients[key]

    def start_engine(self, weights: str, *, alias: bool = False, **options: Any) -> SimulatedEngine:
        engine = self.exits.enter_context(SimulatedEngine(weights, self.store, **options))
        self.register(engine)
        if alias:
            self.move_alias(engine)
        return engine

    def register(self, engine: SimulatedEngine, role: str = "both") -> None:
        body = {
            "boot": engine.boot,
            "address": engine.address,
            "role": role,
            "descriptor": engine.descriptor.to_json(),
        }
        answer = self.admin.post("/admin/engines", json=body)
        assert answer.status_code == 201, answer.text
        self.engines.append(engine)

    def load_adapter(self, engine: SimulatedEngine, name: str, adapter: str) -> RevisionDigest:
        """Returns the revision that requests for it are answered under, once the service knows of it."""
        engine.adapters[name] = adapter
        self.tell_adapters(engine)
        return engine.computed_under(name).digest

    def tell_adapters(self, engine: SimulatedEngine) -> None:
        """As its launcher does after a heartbeat."""
        told = [
            {"model": name, "adapter": adapter, "revision": engine.computed_under(name).digest}
            for name, adapter in engine.adapters.items()
        ]
        answer = self.admin.put(f"/admin/engines/{engine.boot}/adapters", json={"adapters": told})
        assert answer.status_code == 200, answer.text

    def heartbeats(self, over: threading.Event) -> None:
        """As the launcher of each engine would send them, for as long as it lives: one that is lost, the next makes up for."""
        while not over.wait(HEARTBEAT_S):
            with suppress(DBAPIError), self.database.begin() as conn:
                for engine in [e for e in self.engines if e.alive]:
                    fleet.heartbeat(conn, boot=engine.boot, lease_s=self.settings.engine_lease_s)

    def retire(self, engine: SimulatedEngine) -> None:
        """Whoever is pinned to it."""
        answer = self.admin.delete(f"/admin/engines/{engine.boot}", params={"force": "true"})
        assert answer.is_success, answer.text

    def move_alias(self, engine: SimulatedEngine, name: str = "production", **more: Any) -> None:
        self.point(engine.revision, name, **more)

    def point(self, revision: str, name: str = "production", **more: Any) -> None:
        answer = self.admin.put(f"/admin/aliases/{name}", json={"revision": revision} | more)
        assert answer.status_code == 200, answer.text

    @contextmanager
    def second_server(self) -> Iterator[str]:
        """Another process of the service, as far as the first can tell."""
        server = self.new_server().start()
        yield server.url
        server.stop()

    def conversation(self, **body: Any) -> str:
        answer = self.http.post("/v1/conversations", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def post(self, **body: Any) -> httpx.Response:
        headers = body.pop("headers", {})
        return self.http.post("/v1/responses", json=body, headers=headers)

    def ask(self, text: str, /, **body: Any) -> dict[str, Any]:
        answer = self.post(input=text, **body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def stream(self, text: str, /, **body: Any) -> list[dict[str, Any]]:
        headers = body.pop("headers", {})
        asked = body | {"input": text, "stream": True}
        with self.http.stream("POST", "/v1/responses", json=asked, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(sse(answer))

    def other_tenant(self) -> str:
        """The key of a new tenant."""
        tenant, secret = TenantId(f"t{uuid4().hex}"), f"sk-{uuid4().hex}"
        with self.database.begin() as conn:
            keys.create_tenant(conn, tenant)
            keys.create_key(
                conn, tenant=tenant, scope=keys.Scope.TENANT, secret=secret, now=datetime.now(UTC)
            )
        return secret

    def events(self, conversation: str) -> list[Event]:
        with self.database.begin() as conn:
            return event_store.read(conn, tenant=TENANT, stream=conversation)

    def state(self, conversation: str) -> Conversation:
        with self.database.begin() as conn:
            return event_store.load_conversation(conn, TENANT, ConversationId(conversation))

    def await_artifacts(self, conversation: str, count: int) -> list[str]:
        """Publication follows the answer."""

        def stored() -> list[str]:
            with self.database.begin() as conn:
                found = artifacts.of_conversation(conn, TENANT, ConversationId(conversation))
                return [a.artifact for a in found]

        eventually(lambda: len(stored()) >= count)
        return stored()

    def alias_revision(self, name: str = "production") -> str:
        with self.database.begin() as conn:
            alias = fleet.find_alias(conn, name)
        assert alias is not None
        return alias.revision


def sse(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Parsed events; each one's own name must be the one in its data."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data: dict[str, Any] = json.loads(line.removeprefix("data: "))
            assert data["type"] == name
            yield data
        elif line.startswith(":"):
            yield {"type": "comment", "text": line[1:].strip()}


class LosesAnAnswer(httpx.HTTPTransport):
    """The first: its request was done."""

    lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.lost == 0:
            self.lost = 1
            response.read()
            response.close()
            raise httpx.ReadError("the answer is lost on the way")
        return response


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def until_text(events: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a stream says up to its first text, or all of it where it ends without one."""
    seen: list[dict[str, Any]] = []
    while not deltas(seen) and (event := next(events, None)) is not None:
        seen.append(event)
    return seen


def names(events: list[dict[str, Any]]) -> list[str]:
    return [e["type"] for e in events if e["type"] != "comment"]


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


@contextmanager
def running_stack(database: str, **overrides: Any) -> Iterator[Stack]:
    settings = Settings(
        **{"database_url": SecretStr(database), "broker_url": SecretStr("redis://127.0.0.1:1/0")}
        | {"turn_wait_s": 10, "rebuild_min_tokens": 8, "warm_min_tokens": 8, "engine_lease_s": 2}
        | {"rebuild_timeout_s": 10}
        | {"heartbeat_s": 0.1, "shutdown_s": 5, "publish_wait_s": 5}
        | overrides
    )
    with ExitStack() as exits:
        engine = make_engine(database, application_name="tests", pool_size=5)
        exits.callback(engine.dispose)
        owner = make_engine(database, application_name="tests-owner", pool_size=1, role=None)
        exits.callback(owner.dispose)
        with engine.begin() as conn:
            secrets = rollout_flow.bootstrap(
                conn,
                tenant=TENANT,
                kept=None,
                new_secret=lambda: f"sk-{uuid4().hex}",
                now=datetime.now(UTC),
            )
        process = PoolProcess.open(settings)
        exits.callback(process.close)
        rebuilder = exits.enter_context(ThreadPoolExecutor(2))
        bell = Bell(work=lambda rebuild: rebuilder.submit(run_rebuild, process, rebuild))
        turner = exits.enter_context(ThreadPoolExecutor(4))
        turn_bell = TurnBell(work=lambda turn: turner.submit(run_turn, process, turn))

        def new_server() -> HttpServer:
            return HttpServer(create_app(settings, ring=bell.ring, ring_turn=turn_bell.ring))

        server = new_server()
        exits.callback(server.stop)
        server.start()
        stack = Stack(
            url=server.url,
            secrets=secrets,
            settings=settings,
            database=engine,
            owner=owner,
            server=server,
            new_server=new_server,
            exits=exits.enter_context(ExitStack()),
            bell=bell,
            turn_bell=turn_bell,
        )
        over = threading.Event()
        beating = threading.Thread(target=stack.heartbeats, args=(over,), daemon=True)
        beating.start()
        yield stack
        over.set()
        beating.join()
