"""An engine's wire as a rebuild sees it, in this process, where a test can hold it back, break it or lie for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.evidence import BOOT_HEADER, REVISION_HEADER, Evidence, Published, Refusal
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
    broken: bool = False
    go: threading.Event = field(default_factory=threading.Event)
    """Cleared, it holds every prefill back."""
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    prefills: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def generate(self, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.prefills.append(body)
        self.begun.release()
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

    def seen(self, kv: dict[str, Any], tokens: int) -> Evidence:
        refusal = kv["offer"] and Refusal(
            artifact=kv["offer"],
            reason=RefusalReason.CHECKSUM_MISMATCH if self.fails_to_load else RefusalReason.REVISION_MISMATCH,
            detail="as the test has it",
            differing=("weights",),
        )
        published = Published(
            artifact=ArtifactId(kv["publish"]),
            revision=self.measured,
            producer=self.boot,
            made_by=MadeBy.PREFILL,
            tokens=tokens,
            blocks=1,
            bytes=64,
            expires_ms=LONG_HENCE_MS,
            tip="ab" * 32,
        )
        return Evidence(
            attempt=kv["attempt"],
            boot=self.boot,
            revision=self.measured,
            prompt_tokens=tokens,
            refusal=refusal or None,
            published=None if self.fails_to_publish else published,
            publish_failure="no space left" if self.fails_to_publish else None,
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
