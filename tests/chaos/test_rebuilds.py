"""A slice of the worker's part of `make chaos`: its process dies, or its connection, around the COMMITs of a rebuild."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from openai import OpenAI

from tests.chaos.client import connect
from tests.chaos.faults import Kind
from tests.chaos.rig import PATIENT, Rig, rebuilding_rig
from tests.chaos.sweep import a_rebuild, break_once
from tests.chaos.wire import Message, Moment

CLAIMED, RECORDED = "UPDATE rebuilds SET state", "INSERT INTO artifacts"


@pytest.fixture(scope="module")
def rebuilding(chaos_folder: Path) -> Iterator[Rig]:
    folder = chaos_folder / "rebuilds"
    folder.mkdir(mode=0o711)
    with rebuilding_rig(folder, **PATIENT) as made:
        yield made


@pytest.fixture
def client(rebuilding: Rig) -> Iterator[OpenAI]:
    made = connect(rebuilding.url, rebuilding.secrets.tenant)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("kind", "statement"), [(Kind.KILL_WORKER, CLAIMED), (Kind.KILL_WORKER, RECORDED), (Kind.CUT, RECORDED)]
)
def test_a_lost_reply_to_a_workers_commit_loses_and_doubles_nothing(
    rebuilding: Rig, client: OpenAI, kind: Kind, statement: str
) -> None:
    def due(passed: Sequence[Message]) -> bool:
        done = any(message.statement.startswith(statement) for message in passed)
        last = passed[-1]
        return done and last.statement.startswith("COMMIT") and last.kind == "CommandComplete"

    run = break_once(rebuilding, client, kind, Moment.BEFORE, due, scenario=a_rebuild(rebuilding))
    assert run.at is not None
    assert run.violations == ()
