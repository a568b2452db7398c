"""An engine's wire as a rebuild sees it, in this process, where a test can hold it back, break it or lie for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.evidence import BOOT_HEADER, REVISION_HEADER, Evidence, Loaded, Published, Refusal
from service.domain.revision import RevisionDigest
from tests.domain.descriptors import V13

LONG_HENCE_MS = 4_000_000_000_000
LONGEST_HOLD_S = 60.0


@dataclass(slots=True)
class PrefillEngine:
    boot: BootId
    address: str = ""
    measured: RevisionDigest = V13.digest
    fails_to_load: bool = False
    fails_to_publish: bool = False
    most_published: int = 1 << 20
    """Tokens."""
    broken: bool = False
    go: threading.Event = field(default_factory=threading.Event)
    """Cleared, it holds prefills back: all, or from number `held_from` on."""
    held_from: int = 1
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    prefills: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    stored: list[Published] = field(default_factory=list)
    """By others, and to be loaded."""

    def generate(self, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.prefills.append(body)
        number = len(self.prefills)
        self.begun.release()
        if number >= self.held_from:
            self.go.wait(LONGEST_HOLD_S)
        wanted = headers[REVISION_HEADER]
        if wanted != self.measured or headers[BOOT_HEADER] != self.boot:
            error = {"type": "revision_mismatch", "wanted": wanted, "measured": self.measured}
            return 409, {"error": error | {"differing_fields": ["weights"]}}
        if self.broken:
            return 500, {"error": {"message": "CUDA error"}}
        kv = body["kv_transfer_params"]["everturn"]
        evidence = self.seen(kv, len(body["token_ids"]))
        self.evidence[kv["attempt"]] = evidence
        if kv["offer"] and self.fails_to_load:
            return 500, {"error": {"message": "KV load failed"}}
        choice = {"token_ids": [7], "text": "x", "finish_reason": "length"}
        return 200, {"choices": [choice], "prompt_token_ids": body["token_ids"]}

    def computed(self) -> list[int]:
        """Of each prefill: the tokens that it did not load."""
        evidence = [self.evidence[p["kv_transfer_params"]["everturn"]["attempt"]] for p in self.prefills]
        return [e.prompt_tokens - (e.loaded.tokens if e.loaded else 0) for e in evidence]

    def seen(self, kv: dict[str, Any], tokens: int) -> Evidence:
        loaded = self._loaded(kv["offer"])
        refusal = (
            kv["offer"]
            and loaded is None
            and Refusal(
                artifact=kv["offer"],
                reason=RefusalReason.CHECKSUM_MISMATCH
                if self.fails_to_load
                else RefusalReason.REVISION_MISMATCH,
                detail="as the test has it",
                differing=("weights",),
            )
        )
        published = self.published(ArtifactId(kv["publish"]), min(tokens, self.most_published))
        return Evidence(
            attempt=kv["attempt"],
            boot=self.boot,
            revision=self.measured,
            prompt_tokens=tokens,
            loaded=loaded,
            refusal=refusal or None,
            published=None if self.fails_to_publish else published,
            publish_failure="no space left" if self.fails_to_publish else None,
        )

    def published(self, artifact: ArtifactId, tokens: int) -> Published:
        return Published(
            artifact=artifact,
            revision=self.measured,
            producer=self.boot,
            made_by=MadeBy.PREFILL,
            tokens=tokens,
            blocks=1,
            bytes=64,
            expires_ms=LONG_HENCE_MS,
            tip="ab" * 32,
        )

    def _loaded(self, offer: str | None) -> Loaded | None:
        published = [*self.stored, *(e.published for e in self.evidence.values() if e.published)]
        made = {one.artifact: one for one in published}
        found = made.get(ArtifactId(offer or ""))
        if found is None or self.fails_to_load:
            return None
        return Loaded(
            artifact=found.artifact,
            revision=found.revision,
            producer=found.producer,
            tokens=found.tokens,
            bytes=found.bytes,
            seconds=0.001,
        )


@contextmanager
def serving(engine: PrefillEngine) -> Iterator[PrefillEngine]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._answer(*engine.generate({k.lower(): v for k, v in self.headers.items()}, body))

        def do_GET(self) -> None:
            attempt = self.path.partition("?")[0].rpartition("/")[2]
            known = engine.evidence.get(attempt)
            self._answer(*((404, {}) if known is None else (200, known.to_json())))

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A worker that was killed leaves its request unanswered."""

    engine.go.set()
    server = Server(("127.0.0.1", 0), Handler)
    engine.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        engine.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
