"""A slice of `make chaos` that is the same each time: the reply to each COMMIT that accepts something is lost, by each fault."""

from collections.abc import Sequence

import pytest
from openai import OpenAI

from tests.chaos.checks import feed_differs
from tests.chaos.client import connect
from tests.chaos.faults import OF_A_TURN, Kind, choose
from tests.chaos.rig import Rig
from tests.chaos.sweep import break_once, trace
from tests.chaos.wire import Message, Moment

APPENDING = "WITH head AS"
ACCEPTED, ANSWERED = 1, 2
"""The transactions of a turn that append; the first pins its attempt too."""


@pytest.fixture(scope="module")
def passed(running: Rig) -> list[Message]:
    client = connect(running.url, running.secrets.tenant)
    found = trace(running, client)
    client.close()
    return found


def replies_to_appends(passed: Sequence[Message]) -> list[Message]:
    """To the COMMIT of each transaction that appended."""
    replies, appending = [], False
    for message in passed:
        appending = appending or message.statement.startswith(APPENDING)
        if appending and message.statement.startswith("COMMIT") and message.kind == "CommandComplete":
            replies.append(message)
            appending = False
    return replies


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (Kind.KILL_API, ACCEPTED),
        (Kind.KILL_API, ANSWERED),
        (Kind.KILL_POSTGRES, ACCEPTED),
        (Kind.KILL_POSTGRES, ANSWERED),
        (Kind.KILL_BACKEND, ANSWERED),
        (Kind.CUT, ACCEPTED),
    ],
)
def test_c4_a_lost_reply_to_a_commit_loses_and_doubles_nothing(
    running: Rig, client: OpenAI, kind: Kind, step: int
) -> None:
    def due(passed: Sequence[Message]) -> bool:
        replies = replies_to_appends(passed)
        return len(replies) == step and replies[-1] == passed[-1]

    run = break_once(running, client, kind, Moment.BEFORE, due)
    assert run.at is not None
    assert run.violations == ()


def test_the_feed_gives_what_is_in_the_table_once(
    running: Rig, client: OpenAI, passed: list[Message]
) -> None:
    with running.database.connect() as conn:
        assert list(feed_differs(conn)) == []


def test_the_sweep_breaks_at_every_message_and_in_every_way_at_a_commit(passed: list[Message]) -> None:
    numbers = {message.number for message in passed}
    assert {fault.number for fault in choose(passed, len(passed))} == numbers
    commits = {message.number for message in passed if message.statement.startswith("COMMIT")}
    ways = len(OF_A_TURN) * len(Moment)
    chosen = choose(passed, len(passed) + len(commits) * ways)
    assert len(set(chosen)) == len(chosen)
    assert all(sum(fault.number == number for fault in chosen) == ways for number in commits)
