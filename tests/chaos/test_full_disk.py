"""The disk fills up that holds PostgreSQL's data and WAL and the service's log: a clear refusal, nothing lost, and on it goes."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import psycopg
import pytest
from openai import OpenAI

from tests.api.stack import eventually
from tests.chaos.checks import Exchange, broken_chains, violations
from tests.chaos.client import Ask, Outcome, Told, send, settle
from tests.chaos.rig import PATIENT, Rig, rig

SIZE = "size=180m,mode=711"
SOME_WAL = 100_000
PAGE_BYTES = 4096
"""What a full disk may still take of a log: the rest of its last page."""


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path]:
    disk = Path(tempfile.mkdtemp(prefix="everturn-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", SIZE, "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        disk.rmdir()
        pytest.skip("mounting a small tmpfs takes root and the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    disk.rmdir()


@pytest.fixture(scope="module")
def running(small_disk: Path) -> Iterator[Rig]:
    """Each test leaves it as well as it found it."""
    with rig(small_disk, **PATIENT) as made:
        yield made


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while free := shutil.disk_usage(disk).free:
            file.write(b"\0" * free)
    return filler


def asks(conversation: str) -> Iterator[Ask]:
    for number in count():
        yield Ask(conversation=conversation, key=f"{conversation}-{number}", text=f"question {number}")


def answered(client: OpenAI, ask: Ask) -> Exchange:
    told = send(client, ask)
    assert told.outcome is Outcome.ANSWERED
    return Exchange(ask=ask, told=(told,))


def post(running: Rig, ask: Ask) -> httpx.Response:
    """Once, without a client's own retries."""
    return httpx.post(
        f"{running.url}/v1/responses",
        json={"model": "production", "input": ask.text, "conversation": ask.conversation},
        headers={"authorization": f"Bearer {running.secrets.tenant}", "idempotency-key": ask.key},
        timeout=60,
    )


def read(running: Rig, conversation: str) -> int:
    url = f"{running.url}/v1/conversations/{conversation}/items"
    return httpx.get(url, headers={"authorization": f"Bearer {running.secrets.tenant}"}).status_code


def refused_until_full(running: Rig, waiting: Iterator[Ask]) -> tuple[Ask, httpx.Response, list[Exchange]]:
    """The pages that there are have room for some turns yet."""
    taken = list[Exchange]()
    for ask in waiting:
        answer = post(running, ask)
        if answer.status_code != 200:
            return ask, answer, taken
        body = answer.json()
        text = body["output"][0]["content"][0]["text"]
        told = Told(outcome=Outcome.ANSWERED, response=body["id"], text=text)
        taken.append(Exchange(ask=ask, told=(told,)))
    raise AssertionError


def write_wal(running: Rig) -> None:
    """Until it cannot be written."""
    with psycopg.connect(running.server.dsn(), autocommit=True) as writer:
        while True:
            writer.execute("SELECT pg_switch_wal()")
            writer.execute("SELECT pg_logical_emit_message(true, 'chaos', repeat('x', %s))", [SOME_WAL])


def nothing_is_wrong(running: Rig, exchanges: list[Exchange]) -> None:
    with running.database.connect() as conn:
        assert [*violations(conn, exchanges, running.engines), *broken_chains(conn)] == []


def test_a_full_disk_is_a_clear_refusal_and_a_freed_one_needs_no_restart(
    small_disk: Path, running: Rig, client: OpenAI
) -> None:
    waiting = asks(client.conversations.create().id)
    exchanges = [answered(client, next(waiting))]
    before = (running.server.child.pid, running.api.pid if running.api else None)
    filler = fill(small_disk)
    written = running.log.stat().st_size
    refused, answer, taken = refused_until_full(running, waiting)
    assert running.log.stat().st_size - written < PAGE_BYTES
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "storage_unavailable"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-should-retry"] == "true"
    assert read(running, refused.conversation) == 200
    filler.unlink()
    exchanges += [*taken, Exchange(ask=refused, told=(settle(client, refused),))]
    exchanges.append(answered(client, next(waiting)))
    nothing_is_wrong(running, exchanges)
    assert before == (running.server.child.pid, running.api.pid if running.api else None)
    assert not running.server.child.ended()


def test_a_turn_whose_answer_finds_the_disk_full_ends_as_its_client_is_told(
    small_disk: Path, running: Rig, client: OpenAI
) -> None:
    waiting = asks(client.conversations.create().id)
    exchanges = [answered(client, next(waiting))]
    ask = next(waiting)
    running.engine.faults.hold_after = 2
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, client, ask)
        eventually(lambda: running.engine.faults.hold_after is None)
        filler = fill(small_disk)
        running.engine.faults.release.set()
        told = sending.result()
    filler.unlink()
    exchanges.append(Exchange(ask=ask, told=(told, settle(client, ask))))
    exchanges.append(answered(client, next(waiting)))
    nothing_is_wrong(running, exchanges)


def test_a_full_wal_ends_the_server_and_the_service_waits_for_it(
    small_disk: Path, running: Rig, client: OpenAI
) -> None:
    waiting = asks(client.conversations.create().id)
    exchanges = [answered(client, next(waiting))]
    filler = fill(small_disk)
    with pytest.raises(psycopg.OperationalError):
        write_wal(running)
    assert running.server.child.ended(within_s=30)
    refused = next(waiting)
    answer = post(running, refused)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    filler.unlink()
    api = running.api
    running.mend()
    assert running.api is api
    exchanges.append(Exchange(ask=refused, told=(settle(client, refused),)))
    nothing_is_wrong(running, exchanges)
