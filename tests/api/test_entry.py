"""`python -m service`, as an operator starts it: it serves, or says in one line why not."""

import asyncio
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from service.__main__ import _listen, main
from tests.api.stack import Stack, eventually
from tests.api.test_admin import engine_body


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={"PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(url: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"EVERTURN_DATABASE_URL": url, "EVERTURN_PORT": str(port), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [sys.executable, "-m", "service"], env=environment, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def test_it_migrates_an_empty_database_serves_and_stops_on_sigterm(empty_database: str) -> None:
    port = free_port()
    with served(empty_database, port) as process:
        eventually(lambda: answers(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_a_connection_outlives_the_time_that_clients_keep_one_for_reuse(empty_database: str) -> None:
    port = free_port()
    expiry = openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry
    assert expiry
    with served(empty_database, port):
        eventually(lambda: answers(port))
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        wire = connection.sock
        time.sleep(expiry + 1)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        assert connection.sock is wire
        connection.close()


def test_who_asks_for_a_websocket_is_told_that_there_is_none(empty_database: str) -> None:
    asked = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    port = free_port()
    with served(empty_database, port):
        eventually(lambda: answers(port))
        key = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/responses", headers=asked | key)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_port_in_use_is_one_clear_line(empty_database: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run({"EVERTURN_DATABASE_URL": empty_database, "EVERTURN_PORT": str(port)})
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "EVERTURN_DATABASE_URL"),
        (
            {"EVERTURN_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/x", "EVERTURN_PORT": "0"},
            "EVERTURN_PORT",
        ),
        ({"EVERTURN_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/x"}, "EVERTURN_DATABASE_URL"),
        ({"EVERTURN_DATABASE_URL": "mysql://u:secret@127.0.0.1/x"}, "PostgreSQL 18"),
    ],
)
def test_what_cannot_start_says_why_without_a_secret(environment: dict[str, str], named: str) -> None:
    ended = run(environment | ({"EVERTURN_PORT": str(free_port())} | environment))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert named in ended.stderr
    assert "secret" not in ended.stderr


def test_bootstrap_keeps_its_keys_for_their_owner_only_and_makes_them_once(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTURN_DATABASE_URL", empty_database)
    kept = tmp_path / "keys.json"
    assert main(["bootstrap", "--tenant", "acme", "--out", str(kept)]) == 0
    first = kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert main(["bootstrap", "--tenant", "acme", "--out", str(kept)]) == 0
    assert kept.read_text() == first


def test_bootstrap_makes_a_key_for_engines_that_moves_no_alias(stack: Stack) -> None:
    """Given in a file of its own, for the machines that engines run on."""
    body = {"revision": "rev_" + "0" * 64}
    engines = stack.client(stack.secrets.engine)
    assert engines.put("/admin/aliases/production", json=body).status_code == 403
    assert engines.post("/admin/engines", json=engine_body()).status_code == 201


def test_bootstrap_writes_the_key_for_engines_alone_where_they_read_it(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTURN_DATABASE_URL", empty_database)
    kept, for_engines = tmp_path / "keys.json", tmp_path / "engine.key"
    assert main(["bootstrap", "--out", str(kept), "--engine-key", str(for_engines)]) == 0
    first = for_engines.read_text()
    assert first == json.loads(kept.read_text())["engine_key"]
    assert stat.S_IMODE(for_engines.stat().st_mode) == 0o600
    for_engines.unlink()
    assert main(["bootstrap", "--out", str(kept), "--engine-key", str(for_engines)]) == 0
    assert for_engines.read_text() == first


def test_bootstrap_adds_the_key_for_engines_to_keys_that_were_made_without(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTURN_DATABASE_URL", empty_database)
    kept = tmp_path / "keys.json"
    assert main(["bootstrap", "--out", str(kept)]) == 0
    first = json.loads(kept.read_text())
    kept.write_text(json.dumps({name: first[name] for name in ("tenant_key", "operator_key")}))
    assert main(["bootstrap", "--out", str(kept)]) == 0
    second = json.loads(kept.read_text())
    assert second | {"engine_key": ""} == first | {"engine_key": ""}
    assert second["engine_key"] not in ("", first["engine_key"])


def test_bootstrap_makes_new_keys_for_a_new_database(
    empty_database: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "keys.json"
    monkeypatch.setenv("EVERTURN_DATABASE_URL", empty_database)
    assert main(["bootstrap", "--out", str(kept)]) == 0
    first = kept.read_text()
    monkeypatch.setenv("EVERTURN_DATABASE_URL", database)
    assert main(["bootstrap", "--out", str(kept)]) == 0
    assert kept.read_text() != first


def test_bootstrap_leaves_a_file_that_is_not_its_own(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVERTURN_DATABASE_URL", empty_database)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    assert main(["bootstrap", "--out", str(foreign)]) == 1
    assert foreign.read_text() == "mine"
    assert str(foreign) in capsys.readouterr().err


def test_what_it_writes_is_sent_at_once_on_any_event_loop() -> None:
    listener = _listen("127.0.0.1", 0)
    listener.listen()
    at_once = list[int]()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = writer.get_extra_info("socket")
        at_once.append(wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, sock=listener) as server:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()
            server.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(serve())
    assert at_once
    assert all(at_once)
