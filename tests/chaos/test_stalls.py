"""PostgreSQL that hangs, is full of sessions, or waits for a client that hangs: every wait ends, and all goes on by itself."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from time import monotonic

import httpx
import psycopg
import pytest
from openai import OpenAI
from psycopg.errors import IdleInTransactionSessionTimeout, TransactionTimeout
from sqlalchemy import text
from sqlalchemy.exc import InternalError, OperationalError

from service.api.database import ALL_TENANTS, LONGEST_TRANSACTION_S, Database
from service.api.errors import error_response
from service.api.operations import DATABASE_PATIENCE_S
from service.store.connection import (
    CONNECT_TIMEOUT_S,
    HOST_GONE_S,
    HOST_SILENT_S,
    LOCK_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    make_async_engine,
    make_engine,
)
from tests.api.stack import eventually
from tests.chaos.client import Ask, Outcome, send
from tests.chaos.rig import REPOSITORY, TENANT, Rig, proxied

SLACK_S = 10.0
"""Of a busy machine."""
HELD_S = 2
HOLDER = f"""
import sys, time
from sqlalchemy import text
from service.store import event_store
from service.store.connection import make_engine
with make_engine(sys.argv[1], application_name="holder").begin() as conn:
    event_store.load_conversation(conn, {TENANT!r}, sys.argv[2], for_update=True)
    conn.execute(text("SET idle_in_transaction_session_timeout = '{HELD_S}s'"))
    print("held", flush=True)
    time.sleep(600)
"""

_numbers = count()


@pytest.fixture
def conversation(running: Rig, client: OpenAI) -> str:
    eventually(lambda: ready(running)[0] == 200)
    return client.conversations.create().id


def ask(conversation: str) -> Ask:
    return Ask(conversation=conversation, key=f"stall-{next(_numbers)}", text="a question")


def ready(running: Rig) -> tuple[int, float]:
    """The status, and the seconds that it took."""
    began = monotonic()
    status = httpx.get(f"{running.url}/readyz", timeout=60).status_code
    return status, monotonic() - began


def post(running: Rig, conversation: str) -> httpx.Response:
    return httpx.post(
        f"{running.url}/v1/responses",
        json={"model": "production", "input": "a question", "conversation": conversation},
        headers={"authorization": f"Bearer {running.secrets.tenant}"},
        timeout=60,
    )


def test_sessions_go_on_under_a_main_process_that_hangs(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    with running.stopped(everything=False):
        assert send(client, ask(conversation)).outcome is Outcome.ANSWERED


def test_without_sessions_a_main_process_that_hangs_is_a_clear_refusal(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    with running.stopped(everything=False):
        running.proxy.cut_all()
        with ThreadPoolExecutor(1) as pool:
            posting = pool.submit(post, running, conversation)
            status, took_s = ready(running)
        refused = posting.result()
    assert status == 503
    assert took_s < CONNECT_TIMEOUT_S + SLACK_S
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    eventually(lambda: ready(running)[0] == 200)
    assert send(client, ask(conversation)).outcome is Outcome.ANSWERED


def test_a_server_that_hangs_as_a_whole_is_not_ready_and_is_gone_on_with(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    with running.stopped(everything=True):
        status, took_s = ready(running)
    assert status == 503
    assert took_s < DATABASE_PATIENCE_S + CONNECT_TIMEOUT_S + SLACK_S
    eventually(lambda: ready(running)[0] == 200)
    assert send(client, ask(conversation)).outcome is Outcome.ANSWERED


async def test_a_server_that_falls_silent_costs_the_connection_and_no_more_time(running: Rig) -> None:
    url = proxied(running.server.url(), running.proxy.port)
    database = Database(make_async_engine(url, application_name="tests", pool_size=1))
    one = text("SELECT 1")
    assert await database.run(lambda conn: conn.execute(one).scalar(), reach=ALL_TENANTS) == 1
    began = monotonic()
    with running.proxy.silence(), pytest.raises(OperationalError):
        await database.run(lambda conn: conn.execute(one).scalar(), reach=ALL_TENANTS, within_s=0.2)
    assert monotonic() - began < SLACK_S
    assert await database.run(lambda conn: conn.execute(one).scalar(), reach=ALL_TENANTS) == 1
    await database.close()


def test_the_servers_own_limits_come_first() -> None:
    assert LONGEST_TRANSACTION_S > STATEMENT_TIMEOUT_S


def test_a_host_that_is_gone_is_noticed_by_the_network(running: Rig) -> None:
    engine = make_engine(proxied(running.server.url(), running.proxy.port), application_name="tests")
    with engine.connect() as conn:
        descriptor = os.dup(conn.connection.driver_connection.fileno())  # type: ignore[union-attr]
        with socket.socket(fileno=descriptor) as wire:
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == HOST_SILENT_S
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == HOST_GONE_S * 1000
    engine.dispose()


def test_a_server_full_of_sessions_is_a_clear_refusal_until_there_is_room(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    with full_of_sessions(running):
        running.proxy.cut_all()
        assert ready(running)[0] == 503
        refused = post(running, conversation)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    eventually(lambda: ready(running)[0] == 200)
    assert send(client, ask(conversation)).outcome is Outcome.ANSWERED


def test_a_client_that_hangs_with_a_lock_is_ended_and_the_next_is_answered(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    command = [sys.executable, "-c", HOLDER, running.server.url(), conversation]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            holder.send_signal(signal.SIGSTOP)
            began = monotonic()
            told = send(client, ask(conversation))
            took_s = monotonic() - began
        finally:
            holder.kill()
    assert told.outcome is Outcome.ANSWERED
    assert took_s < LOCK_TIMEOUT_S + SLACK_S


@pytest.mark.parametrize("ended", [IdleInTransactionSessionTimeout(), TransactionTimeout()])
def test_a_transaction_that_the_server_ended_may_be_tried_again(ended: psycopg.Error) -> None:
    """As a process finds it that stood still in the middle of one."""
    answer = error_response(InternalError("SELECT 1", {}, ended))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@contextmanager
def full_of_sessions(running: Rig) -> Iterator[None]:
    with ExitStack() as held:

        def one_more() -> bool:
            try:
                held.enter_context(psycopg.connect(running.server.dsn()))
            except psycopg.OperationalError:
                return False
            return True

        running.proxy.cut_all()
        while one_more():
            continue
        yield
