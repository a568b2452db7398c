"""An S3 object store for tests, and a front before it that fails as real ones do."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import httpx
import pytest

KEY = "everturn-tests"
HANGS = -1
NOT_PASSED_ON = {"host", "connection", "transfer-encoding", "content-length", "expect"}

Fault = Callable[[str, str], int | None]
"""Of method and path: a status instead of an answer, HANGS, or None for the object store's own answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    url: str

    def make_bucket(self) -> str:
        bucket = f"kv-{uuid4().hex}"
        httpx.put(f"{self.url}/{bucket}", trust_env=False).raise_for_status()
        return bucket


def environment(url: str) -> dict[str, str]:
    """As an operator sets it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.kv_connector.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    try:
        yield S3Server(url=f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.communicate()


class Front:
    """Passes on what it is not told to fail."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.fault: Fault = lambda _method, _path: None
        self.answered: Fault = lambda _method, _path: None
        """Only after the object store has done what it was asked."""
        self.cut: int | None = None
        """Bytes of each body after which the connection ends."""
        self.requests: list[tuple[str, str]] = []
        self.goes_on = threading.Event()
        self.client = httpx.Client(trust_env=False)
        self.url = ""

    def fail(self, status: int | None, *methods: str) -> None:
        self.fault = lambda method, _path: status if not methods or method in methods else None


@contextmanager
def front_of(behind: str) -> Iterator[Front]:
    front = Front(behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            front.requests.append((self.command, self.path))
            status = front.fault(self.command, self.path)
            if status == HANGS:
                front.goes_on.wait(60)
                self.close_connection = True
                return
            if status is not None:
                self._answer(status, {}, b"<Error><Code>Failed</Code></Error>")
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() not in NOT_PASSED_ON}
            theirs = front.client.request(
                self.command, front.behind + self.path, headers=headers, content=body
            )
            status = front.answered(self.command, self.path)
            if status is not None:
                self._answer(status, {}, b"<Error><Code>Failed</Code></Error>")
                return
            self._answer(theirs.status_code, dict(theirs.headers), theirs.content)

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            length = headers.pop("content-length", str(len(body)))
            for name, value in headers.items():
                if name.lower() not in {*NOT_PASSED_ON, "content-encoding", "server", "date"}:
                    self.send_header(name, value)
            self.send_header("content-length", length if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body[: front.cut])
            self.close_connection = front.cut is not None

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle  # noqa: N815 as the base class calls them

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    front.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield front
    finally:
        front.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
        front.client.close()
