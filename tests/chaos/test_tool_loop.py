"""A slice of `make chaos`: all that serves a tool call dies at each write from the call on to the answer that was made of its output."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from openai import OpenAI

from tests.chaos.client import connect
from tests.chaos.faults import Kind
from tests.chaos.rig import Rig, rig
from tests.chaos.tool_loop import break_loop, calling, trace_loop, writes
from tests.chaos.wire import Message, Moment, Side

FEWEST_WRITES = 4
"""Of two turns, each of which is accepted and answered. A loop that was traced on a busy machine has more, of a turn that was taken for dead and asked for anew."""
IMPATIENT = {"EVERTURN_TURN_LEASE_S": "1.5"}
"""A turn that is taken for dead on a busy machine is asked for again, as one is that has died."""


@pytest.fixture(scope="module")
def looping(chaos_folder: Path) -> Iterator[Rig]:
    folder = chaos_folder / "loops"
    folder.mkdir(mode=0o711)
    with rig(folder, **IMPATIENT) as made:
        calling(made)
        yield made


@pytest.fixture(scope="module")
def client(looping: Rig) -> Iterator[OpenAI]:
    made = connect(looping.url, looping.secrets.tenant).with_options(max_retries=0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def passed(looping: Rig, client: OpenAI) -> list[Message]:
    return trace_loop(looping, client)


@pytest.mark.parametrize("side", list(Side))
def test_c4_a_call_and_its_output_outlive_a_kill_at_every_write_between_them(
    looping: Rig, client: OpenAI, passed: list[Message], side: Side
) -> None:
    """Before a COMMIT, which is lost then, and before the reply to it, which nobody hears."""
    found = {}
    count = len(writes(passed, side))
    assert count >= FEWEST_WRITES
    for number in range(count // 2, count + 1):

        def due(seen: Sequence[Message], number: int = number) -> bool:
            reached = writes(seen, side)
            return len(reached) == number and reached[-1] == seen[-1]

        kind = Kind.KILL_API if number % 2 == (side is Side.BACKEND) else Kind.KILL_POSTGRES
        run = break_loop(looping, client, kind, Moment.BEFORE, due)
        assert run.at is not None or number > FEWEST_WRITES, f"write {number} was not reached"
        if run.violations:
            found[f"{kind} at {run.at}"] = run.violations
    assert found == {}
