"""In front of vLLM's API server: turns away requests meant for another revision, and answers what the service asks.

Composition root: reads EVERTURN_RUN_DIR and EVERTURN_STORE, as set by whoever starts the engine.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from service.domain.errors import InvalidInput
from service.domain.evidence import BOOT_HEADER, REVISION_HEADER, TOLD_HEADER
from service.domain.revision import Descriptor, differing_fields
from workers.kv_connector.adapter_front import LOAD_ROUTE, UNLOAD_ROUTE, AdapterFront
from workers.kv_connector.answer_stream import ToldBeside
from workers.kv_connector.counters import as_prometheus, read_counters
from workers.kv_connector.guard_facts import guard_facts
from workers.kv_connector.reports import KnownIdentity, read_attempt
from workers.kv_connector.store_address import open_store
from workers.kv_connector.text_front import TextFront

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

WEIGHT_CHANGING_ROUTES = frozenset(
    {
        "/collective_rpc",
        "/fault_tolerance/apply",
        "/finish_weight_update",
        "/init_weight_transfer_engine",
        "/release_kv_cache_memory",
        "/scale_elastic_ep",
        "/shutdown_weight_transfer_engine",
        "/sleep",
        "/start_draft_weight_update",
        "/start_weight_update",
        "/update_weight_version",
        "/update_weights",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
        "/weight_checker",
    }
)
"""The revision was measured at start: weights may not change under it."""

ADAPTER_ROUTES = frozenset({LOAD_ROUTE, UNLOAD_ROUTE})
"""Open on engines that take adapters: each is a revision of its own."""

OURS = "/everturn"
OUR_HEADERS = b"x-everturn-"

MAX_BODY_BYTES = 32 << 20
MAX_WAIT_S = 60.0
POLL_S = 0.005
"""A publication takes some 10 ms and more, and whoever asked for it waits for each of these."""


class Problem(Exception):
    """An answer other than 200, as the error envelope says it."""

    def __init__(self, status: int, type_: str, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.envelope = {"error": {"type": type_, "message": message, **more}}


class EverturnMiddleware:
    def __init__(self, app: App) -> None:
        self._app = app
        self._run_dir = _folder("EVERTURN_RUN_DIR")
        self._store = open_store(_setting("EVERTURN_STORE"))
        self._identity = KnownIdentity(self._run_dir)
        self._text = TextFront()
        self._adapters = AdapterFront(_folder("EVERTURN_RUN_DIR"), self._store.put_descriptor)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity, said = self._measured(), _said(scope)
        try:
            scope, receive, identity = await self._with_adapter(scope, receive, identity, said)
            answer = await self._answer(scope, receive, identity, said)
            if answer is None and TOLD_HEADER in said:
                receive, send = await self._told(scope, receive, send, identity)
        except Problem as problem:
            await _respond(send, problem.status, problem.envelope, identity)
        except InvalidInput as error:
            envelope = {"error": {"type": "invalid_request", "message": str(error), "param": error.param}}
            await _respond(send, 400, envelope, identity)
        else:
            if answer is None:
                await self._app(scope, receive, _stamped(send, identity))
            else:
                await _respond(send, 200, answer, identity)

    async def _answer(
        self, scope: Scope, receive: Receive, identity: dict[str, Any], said: Mapping[str, str]
    ) -> object | None:
        """None passes the request on to vLLM."""
        method, path = scope["method"], _route(scope)
        if path in WEIGHT_CHANGING_ROUTES and not (path in ADAPTER_ROUTES and _takes_adapters(scope)):
            message = "Weights may not change under a measured revision; start an engine on the new ones."
            raise Problem(409, "revision_fixed", message)
        if method == "POST" and said:
            self._check_claims(said, identity)
        return await self._own_answer(scope, receive, identity) if path.startswith(OURS) else None

    async def _own_answer(self, scope: Scope, receive: Receive, identity: dict[str, Any]) -> object | None:
        method, path = scope["method"], _route(scope)
        match method, path.split("/")[1:]:
            case "GET", ["everturn", "identity"]:
                return await self._identity_answer(scope, identity)
            case "GET", ["everturn", "attempts", attempt]:
                return await self._attempt(attempt, scope)
            case "GET", ["everturn", "guard"]:
                return guard_facts(identity, scope["app"].state.vllm_config, read_counters(self._run_dir))
            case "GET", ["everturn", "metrics"]:
                return as_prometheus(read_counters(self._run_dir))
            case "POST", ["everturn", "render"]:
                stops = identity.get("stop_token_ids", ())
                return await self._text.render(scope["app"], await _body(receive), stops)
            case "POST", ["everturn", "parse"]:
                return await self._text.parse(scope["app"], await _body(receive))
            case _, ["everturn", *_]:
                raise Problem(404, "not_found", f"No route {method} {path}.")
            case _:
                return None

    async def _told(
        self, scope: Scope, receive: Receive, send: Send, identity: dict[str, Any]
    ) -> tuple[Receive, Send]:
        """Of a request to generate: beside each chunk, what the model's parsers make of it."""
        body = await _body(receive)
        stops = frozenset(identity.get("stop_token_ids", ()))
        answer = await self._text.telling(scope["app"], body, stops)
        return _replayed(body, receive), send if answer is None else ToldBeside(send, answer)

    async def _with_adapter(
        self, scope: Scope, receive: Receive, identity: dict[str, Any], said: Mapping[str, str]
    ) -> tuple[Scope, Receive, dict[str, Any]]:
        """What a claim is compared with is the revision of the model that the request names."""
        loaded = _adapters_of(scope) if scope["method"] == "POST" else None
        if loaded is None:
            return scope, receive, identity
        if _route(scope) == LOAD_ROUTE:
            body = await self._adapters.private_load(await _body(receive), loaded)
            headers = [(k, v) for k, v in scope["headers"] if k.lower() != b"content-length"]
            length = (b"content-length", str(len(body)).encode())
            return {**scope, "headers": [*headers, length]}, _replayed(body, receive), identity
        if REVISION_HEADER not in said:
            return scope, receive, identity
        body = await _body(receive)
        return scope, _replayed(body, receive), self._adapters.identity(identity, body, loaded)

    def _measured(self) -> dict[str, Any]:
        unmeasured = {"boot": None, "revision": None, "error": "the engine has not measured itself yet"}
        return self._identity.read() or unmeasured

    def _check_claims(self, said: Mapping[str, str], identity: dict[str, Any]) -> None:
        wanted = said.get(REVISION_HEADER)
        if wanted is not None and wanted != identity["revision"]:
            measured = identity["revision"]
            fields = self._differing(wanted, identity)
            named = ", ".join(fields) or "unknown, one of the two descriptors is not at hand"
            message = f"The engine is {measured or 'unmeasured'}, not {wanted}; differing fields: {named}."
            raise Problem(
                409, "revision_mismatch", message, wanted=wanted, measured=measured, differing_fields=fields
            )
        boot = said.get(BOOT_HEADER)
        if boot is not None and boot != identity["boot"]:
            message = (
                f"This is engine {identity['boot']}, not {boot}: it was started anew, or the address moved."
            )
            raise Problem(
                409, "boot_mismatch", message, wanted=boot, measured=identity["boot"], differing_fields=[]
            )

    def _differing(self, wanted: str, identity: dict[str, Any]) -> list[str]:
        theirs = self._store.read_descriptor(wanted)
        if theirs is None or identity["revision"] is None:
            return []
        return list(differing_fields(Descriptor.from_json(identity["descriptor"]), theirs))

    async def _identity_answer(self, scope: Scope, identity: dict[str, Any]) -> object:
        if identity["revision"] is None:
            raise Problem(503, "unmeasured", f"This engine has no measured revision: {identity['error']}.")
        loaded = _adapters_of(scope)
        if loaded is None:
            return identity
        return identity | {"adapters": await self._adapters.served(identity, loaded)}

    async def _attempt(self, attempt: str, scope: Scope) -> object:
        left = _wait_s(scope)
        while True:
            found = read_attempt(self._run_dir, attempt)
            if found is not None and (not found[1] or left <= 0):
                return found[0]
            if left <= 0:
                raise Problem(404, "not_found", f"This engine has seen no attempt '{attempt}'.")
            await asyncio.sleep(POLL_S)
            left -= POLL_S


def _route(scope: Scope) -> str:
    """The path as vLLM's router takes it, which is without the prefix of --root-path."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


def _folder(variable: str) -> Path:
    return Path(_setting(variable))


def _setting(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise InvalidInput(f"{variable} is not set: give what the engine's connector has too.", variable)
    return value


def _wait_s(scope: Scope) -> float:
    text = parse_qs(scope["query_string"].decode("latin-1")).get("wait_s", ["0"])[0]
    try:
        wait_s = float(text)
    except ValueError as error:
        raise InvalidInput("'wait_s' must be a number of seconds.", "wait_s") from error
    if isnan(wait_s):
        raise InvalidInput("'wait_s' must be a number of seconds.", "wait_s")
    return min(max(wait_s, 0.0), MAX_WAIT_S)


def _said(scope: Scope) -> dict[str, str]:
    """Headers of ours by name in lower case; of one that comes twice, the first."""
    said: dict[str, str] = {}
    for key, value in scope["headers"]:
        if key[: len(OUR_HEADERS)].lower() == OUR_HEADERS:
            said.setdefault(key.decode("latin-1").lower(), value.decode("latin-1"))
    return said


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise Problem(413, "too_large", f"The body exceeds {MAX_BODY_BYTES} bytes.")
        if not event.get("more_body"):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then whatever comes."""
    whole = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Event:
        return next(whole, None) or await receive()

    return replayed


def _takes_adapters(scope: Scope) -> bool:
    return getattr(scope["app"].state.vllm_config, "lora_config", None) is not None


def _adapters_of(scope: Scope) -> Mapping[str, Any] | None:
    """LoRARequests of vLLM by name; None at an engine that takes none."""
    if not _takes_adapters(scope):
        return None
    loaded: Mapping[str, Any] = scope["app"].state.openai_serving_models.lora_requests
    return loaded


def _stamps(identity: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    values = ((REVISION_HEADER, identity["revision"]), (BOOT_HEADER, identity["boot"]))
    return [(name.encode(), value.encode()) for name, value in values if value]


def _stamped(send: Send, identity: dict[str, Any]) -> Send:
    async def stamped(event: Event) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event.get("headers", ()), *_stamps(identity)]
        await send(event)

    return stamped


async def _respond(send: Send, status: int, answer: object, identity: dict[str, Any]) -> None:
    text = isinstance(answer, str)
    body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
    kind = b"text/plain; version=0.0.4; charset=utf-8" if text else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + _stamps(identity)})
    await send({"type": "http.response.body", "body": body})
