"""Messages to PostgreSQL and from it that are held up: by a disk that takes long to sync, or by a network that carries one way alone."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic, sleep

import pytest
from openai import OpenAI

from tests.api.stack import eventually
from tests.chaos.checks import Exchange, violations
from tests.chaos.client import Ask, Outcome, Told, send, settle
from tests.chaos.rig import PATIENT, Rig
from tests.chaos.wire import Side

LEASE_S = float(PATIENT["EVERTURN_TURN_LEASE_S"])
LONGER_S = LEASE_S + 0.5

_numbers = count()


@pytest.fixture
def conversation(client: OpenAI) -> str:
    return client.conversations.create().id


def ask(conversation: str, *, streamed: bool = False) -> Ask:
    return Ask(conversation=conversation, key=f"held-{next(_numbers)}", text="a question", streamed=streamed)


def ended_once(running: Rig, client: OpenAI, asked: Ask, told: Told) -> None:
    """As its client was told, and is told again."""
    exchange = Exchange(ask=asked, told=(told, settle(client, asked)))
    with running.database.connect() as conn:
        assert list(violations(conn, [exchange], running.engines)) == []


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("for_s", [0.05, 1.0])
def test_a_turn_is_answered_on_a_disk_that_takes_long_to_sync(
    running: Rig, client: OpenAI, conversation: str, for_s: float, streamed: bool
) -> None:
    asked, began = ask(conversation, streamed=streamed), monotonic()
    with running.proxy.slow_commits(for_s):
        told = send(client, asked)
        took_s = monotonic() - began
    assert told.outcome is Outcome.ANSWERED
    assert took_s >= 2 * for_s, "it is accepted by one, and answered by another"
    ended_once(running, client, asked, told)


def test_a_turn_ends_once_where_a_sync_takes_longer_than_its_lease(
    running: Rig, client: OpenAI, conversation: str
) -> None:
    asked = ask(conversation)
    with running.proxy.slow_commits(LONGER_S):
        told = send(client, asked)
    ended_once(running, client, asked, told)


@pytest.mark.parametrize("deaf", Side)
def test_a_turn_ends_once_where_one_side_is_not_heard_for_longer_than_its_lease(
    running: Rig, client: OpenAI, conversation: str, deaf: Side
) -> None:
    """From the middle of its answer on."""
    asked, faults = ask(conversation), running.engine.faults
    faults.release.clear()
    faults.hold_after = 1
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, client, asked)
        eventually(lambda: faults.hold_after is None)
        with running.proxy.silence(deaf):
            faults.release.set()
            sleep(LONGER_S)
        told = sending.result()
    ended_once(running, client, asked, told)
