"""Stands where vLLM's API server is started from, so that the launcher's own steps are tested in seconds.

Its behaviour is the JSON file named by FAKE_VLLM, read again at every request; what happens to it is appended to the
file beside it, as `journal`.
"""

import json
import mmap
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ARGUMENTS = sys.argv[1:]
SCRIPT = Path(os.environ["FAKE_VLLM"])


def script() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCRIPT.read_text())
    return found


def note(what: str) -> None:
    with SCRIPT.with_name("journal").open("a") as journal:
        journal.write(f"{time.time()} {what}\n")


def value_of(option: str) -> str:
    return ARGUMENTS[ARGUMENTS.index(option) + 1]


def own_boot() -> str:
    return str(json.loads(value_of("--kv-transfer-config"))["kv_connector_extra_config"]["boot_id"])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/health": (script()["health"], {}),
            "/load": (200, {"server_load": script()["load"]}),
            "/everturn/identity": (script()["identity_status"], {"boot": own_boot()} | script()["identity"]),
        }
        self._send(*answers[self.path])

    def do_POST(self) -> None:
        """The canary: its prompt, and its answer."""
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/everturn/render":
            self._send(script()["render_status"], {"token_ids": [1, 2, 3], "mode": "full", "reason": ""})
        else:
            self._send(200, {"choices": [{"token_ids": script()["answer"], "finish_reason": "length"}]})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def share(path: Path) -> mmap.mmap:
    if not path.exists():
        path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)


def ended(_number: int, _frame: FrameType | None) -> None:
    note("sigterm")
    sys.exit(0)


def main() -> None:
    note(f"pid {os.getpid()}")
    note(f"argv {json.dumps(ARGUMENTS)}")
    signal.signal(signal.SIGTERM, ended)
    shared = [share(Path(path)) for path in script()["shared"]]
    time.sleep(script()["load_s"])
    if complaint := script()["complaint"]:
        sys.stderr.write(f"{complaint}\n")
        sys.exit(1)
    with ThreadingHTTPServer(("127.0.0.1", int(value_of("--port"))), Handler) as server:
        server.serve_forever()
    shared.clear()


if __name__ == "__main__":
    main()
