"""The admin routes that the launcher speaks to, with an order of events to look at; the real ones have tests of their own."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LEASE_S = 0.6


@dataclass(slots=True)
class Call:
    at: float
    method: str
    path: str
    body: dict[str, Any]
    key: str
    query: str = ""


@dataclass(slots=True)
class FakeApi:
    port: int
    calls: list[Call] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    refuse: tuple[int, str] | tuple[int, str, str] | None = None
    """Status, message and perhaps a code."""
    revisions: dict[str, Any] = field(default_factory=dict)
    engines: list[dict[str, Any]] = field(default_factory=list)
    adapters: dict[str, Any] = field(default_factory=dict)
    pinned: list[str] = field(default_factory=list)
    """To all engines."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(
        self, method: str, path: str, body: dict[str, Any], *, forced: bool
    ) -> tuple[int, dict[str, Any]]:
        """As where conversations are pinned to every engine: it goes by force alone."""
        if self.refuse is not None:
            status, message, *code = self.refuse
            return status, {"error": {"message": message, "code": code[0] if code else None}}
        match method, path.split("/")[2:]:
            case "POST", ["engines"]:
                self.known.add(body["boot"])
                return 201, {"boot": body["boot"], "revision": "rev_", "lease_s": LEASE_S}
            case "POST", ["engines", boot, "heartbeat"] if boot in self.known:
                return 200, {"lease_s": LEASE_S, "adapters": self.adapters}
            case "PUT", ["engines", boot, "adapters"] if boot in self.known:
                self.adapters = {told["model"]: told.get("revision") for told in body["adapters"]}
                return 200, {}
            case "POST", ["engines", boot, "drain"] if boot in self.known and forced:
                return 200, {}
            case "DELETE", ["engines", boot] if boot in self.known and forced:
                self.known.remove(boot)
                return 204, {}
            case "GET", ["engines"]:
                return 200, {"data": self.engines}
            case _, ["revisions", digest, *rest] if digest in self.revisions:
                return self._retired(digest, forced=forced) if rest else self._described(digest)
        return 404, {"error": {"message": f"nothing at {path}"}}

    def _described(self, digest: str) -> tuple[int, dict[str, Any]]:
        return 200, {"revision": digest, "descriptor": self.revisions[digest]}

    def _retired(self, digest: str, *, forced: bool) -> tuple[int, dict[str, Any]]:
        if self.pinned and not forced:
            return 409, {"error": {"message": f"{len(self.pinned)} conversations are stay_strict"}}
        gone = [engine["boot"] for engine in self.engines if engine["revision"] == digest]
        return 200, {"engines": gone} | ({"conversations": self.pinned} if self.pinned else {})

    def names(self) -> list[str]:
        """The calls in order, with repeats of the same one left out."""
        names = [f"{c.method} {c.path.rpartition('/')[2]}" for c in self.calls]
        return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


@contextmanager
def serving(port: int) -> Iterator[FakeApi]:
    api = FakeApi(port)

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            key = self.headers.get("authorization", "")
            path, _, query = self.path.partition("?")
            api.calls.append(Call(time.time(), self.command, path, body, key, query))
            status, document = api.answer(self.command, path, body, forced=query == "force=true")
            data = b"" if status == 204 else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 as http.server calls them

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
