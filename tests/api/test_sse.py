"""What a stream says of attempts and of the rebuilds they wait for is what the record says again, whoever planned them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from service.api.channel import TurnChannel, View
from service.api.sse import turn_events
from service.conversation_flow import StoredTurn
from service.domain.artifact import BootId
from service.domain.cuts import item_of
from service.domain.events import (
    AttemptFailed,
    ConversationId,
    ItemId,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    Sampling,
    TurnFailed,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.head import LastAnswer
from service.domain.turn import Turn, TurnEvent, advance
from tests.domain.descriptors import V12, V13

TURN = TurnId("resp_1")
STARTED = TurnStarted(
    turn=TURN,
    items=(ItemId("msg_0"),),
    alias="production",
    on_upgrade=OnUpgrade.REPLAY,
    policy_level=PolicyLevel.DEFAULT,
    sampling=Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0),
)
BEFORE = LastAnswer(
    turn=TurnId("resp_0"), engine_revision=V12.digest, engine=BootId("boot_a"), extended=False, tokens=2103
)
WORDS = "abcdefgh"


@dataclass(frozen=True, slots=True)
class Tried:
    rebuild: bool
    known: bool
    """Whether the process that is read was told of its plan."""
    shown: bool
    """Whether it was shown at all before the next one began."""
    words: int


TRIES = st.lists(st.builds(Tried, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 8)), max_size=3)


def pin(number: int, tried: Tried) -> TurnPinned:
    return TurnPinned(
        turn=TURN,
        attempt=number,
        plan=PlanKind.REBUILD if tried.rebuild else PlanKind.COLD,
        reason=f"why {number}",
        revision=V13.digest,
        engine=BootId("boot_b"),
        offer=None,
        carry_tokens=True,
        rebuild=f"rb_{number}" if tried.rebuild else None,
    )


@dataclass(slots=True)
class Recorded:
    turn: Turn = field(default_factory=lambda: Turn.of(STARTED))
    readings: int = 0

    def add(self, event: TurnEvent) -> None:
        self.turn = advance(self.turn, event)

    async def load(self) -> StoredTurn:
        self.readings += 1
        await asyncio.sleep(0)
        return StoredTurn(
            conversation=ConversationId("conv_1"),
            turn=self.turn,
            previous=BEFORE,
            instructions=None,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            completed_at=None,
        )


async def told(channel: TurnChannel, record: Recorded, after: int | None = None) -> list[str]:
    return [event async for event in turn_events(channel, record.load, 5.0, after)]


async def lived(tries: Sequence[Tried], pause: int) -> tuple[list[str], Recorded]:
    """As its first reader sees it, who comes by so often."""
    channel, record = TurnChannel(View(item=item_of(TURN)), cut=True), Recorded()
    reader = asyncio.create_task(told(channel, record))
    await asyncio.sleep(0)
    for number, tried in enumerate(tries, 1):
        pinned = pin(number, tried)
        record.add(pinned)
        if tried.shown or number == len(tries):
            channel.begin(number, pinned.revision, "at it", pinned if tried.known else None)
            for end in range(1, tried.words + 1):
                channel.say(WORDS[:end])
                for _ in range(pause):
                    await asyncio.sleep(0)
        record.add(AttemptFailed(turn=TURN, attempt=number, reason="lost"))
    streamed = channel.record(TURN)
    assert streamed is not None
    record.add(streamed)
    record.add(TurnFailed(turn=TURN, code="engine_failed", message="no more"))
    channel.end()
    return await reader, record


async def again(record: Recorded, after: int | None) -> list[str]:
    ended = TurnChannel(View(item=item_of(TURN), ended=True), cut=False)
    return await told(ended, record, after)


@given(TRIES, st.integers(0, 3))
def test_at_every_number_the_record_says_what_was_said(tries: list[Tried], pause: int) -> None:
    async def check() -> None:
        live, record = await lived(tries, pause)
        assert await again(record, None) == live
        for number in range(len(live)):
            assert await again(record, number) == live[number + 1 :]

    asyncio.run(check())


@given(TRIES)
def test_each_attempt_that_is_told_of_says_what_it_waits_for(tries: list[Tried]) -> None:
    live, _ = asyncio.run(lived(tries, 1))
    data = [json.loads(event.partition("data: ")[2]) for event in live]
    assert [one["sequence_number"] for one in data] == list(range(len(data)))
    announced = {1, *(one["attempt"] for one in data if one["type"] == "everturn.attempt")}
    waits = {number for number, tried in enumerate(tries, 1) if tried.rebuild}
    found = [one for one in data if one["type"] == "everturn.rebuild"]
    assert [one["attempt"] for one in found] == sorted(waits & announced)
    for one in found:
        assert (one["rebuild"], one["reason"]) == (f"rb_{one['attempt']}", f"why {one['attempt']}")
        assert (one["previous_revision"], one["tokens_total"]) == (V12.digest, 2103)
        place = data.index(one)
        assert data[place - 1]["type"] in ("response.in_progress", "everturn.attempt")


def test_a_turn_whose_plans_are_known_here_is_read_at_its_beginning_and_at_its_end_alone() -> None:
    tries = [Tried(rebuild=True, known=True, shown=True, words=2), Tried(True, True, True, 4)]
    _, record = asyncio.run(lived(tries, 1))
    assert record.readings == 2
