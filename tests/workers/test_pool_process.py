"""What a process of the pool asks engines with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from service.domain.artifact import ArtifactId, BootId
from service.domain.errors import EngineFailed
from service.domain.events import Sampling
from service.domain.evidence import KvRequest
from service.engine import client
from service.engine.protocol import GenerateSpec
from service.settings import Settings
from tests.domain.descriptors import V13
from workers.pool_process import PoolProcess

SPEC = GenerateSpec(
    prompt=(1, 2, 3),
    sampling=Sampling(max_output_tokens=1, temperature=0.0, top_p=1.0),
    kv=KvRequest(attempt="rb_1.1", tenant="acme", publish=ArtifactId("kv_" + "0" * 32)),
    revision=V13.digest,
    boot=BootId("boot_a"),
    cache_salt="salt",
)


@contextmanager
def sending_to(elsewhere: str | None) -> Iterator[tuple[str, list[str]]]:
    """A server's address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append(self.path)
            self.send_response(200 if elsewhere is None else 307)
            if elsewhere is not None:
                self.send_header("location", f"{elsewhere}{self.path}")
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_where_an_engine_sends_it_it_does_not_go() -> None:
    """Engines are asked at addresses that an operator allows, and at no other on an engine's word."""
    nowhere = SecretStr("postgresql://nobody@127.0.0.1:1/none")
    process = PoolProcess.open(Settings(database_url=nowhere))
    with sending_to(None) as (elsewhere, taken), sending_to(elsewhere) as (engine, asked):
        with pytest.raises(EngineFailed):
            client.prefill(process.http, engine, SPEC)
        with pytest.raises(EngineFailed):
            client.prefill_evidence(process.http, engine, "rb_1.1", 0)
    process.close()
    assert (len(asked), taken) == (2, [])
