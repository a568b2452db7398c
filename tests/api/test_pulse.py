"""What keeps turns this process's own: one statement for all of them, nothing of what is over soon, and the word that one is lost."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from service.api import pulse
from service.api.channel import TurnChannel, View
from service.api.pulse import Pulse
from service.api.turn_job import Job
from service.domain.cuts import MOST_UNKEPT, Unkept, item_of
from service.domain.events import ConversationId, TenantId, TurnId
from service.domain.revision import RevisionDigest

REV = RevisionDigest("rev_" + "0" * 64)


class Rows:
    def __init__(self, turns: list[str]) -> None:
        self._turns = turns

    def scalars(self) -> list[str]:
        return self._turns


class Connection:
    """Of a database that keeps what it is given, and has lost the turns named."""

    def __init__(self) -> None:
        self.statements: list[dict[str, Any]] = []
        self.renewed: list[set[str]] = []
        self.lost: set[str] = set()

    def exec_driver_sql(self, _: str, parameters: dict[str, Any]) -> Rows:
        self.statements.append(parameters)
        return Rows([turn for turn in parameters["turns"] if turn not in self.lost])

    def execute(self, statement: Any) -> Rows:
        mine = next(value for value in statement.compile().params.values() if isinstance(value, list))
        self.renewed.append(set(mine))
        return Rows([turn for turn in mine if turn not in self.lost])


class Database:
    def __init__(self) -> None:
        self.conn = Connection()

    async def run(self, transaction: Callable[[Any], Any], **_: Any) -> Any:
        return transaction(self.conn)


def job(name: str) -> Job:
    turn = TurnId(name)
    channel = TurnChannel(View(item=item_of(turn)), cut=True)
    channel.unkept = Unkept()
    channel.begin(1, REV, "cold")
    return Job(
        tenant=TenantId("acme"),
        conversation=ConversationId("conv_1"),
        turn=turn,
        item=item_of(turn),
        channel=channel,
        started_s=monotonic(),
    )


def pulse_of(database: Database, *, lease_s: float = 60.0) -> Pulse:
    return Pulse(database, owner="api", lease_s=lease_s)  # type: ignore[arg-type]


async def test_all_turns_are_stored_in_one_statement_and_nothing_twice() -> None:
    database, jobs = Database(), [job("resp_1"), job("resp_2")]
    beat = pulse_of(database)
    for one in jobs:
        beat.add(one, lost=lambda: None)
        one.channel.say("a")
        one.channel.say("ab")
    await beat.store()
    await beat.store()
    await beat.close()
    [stored] = database.conn.statements
    assert (stored["turns"], stored["pieces"]) == (["resp_1", "resp_2"], ["1 1", "1 1"])


async def test_what_could_not_be_stored_is_stored_later_with_its_number() -> None:
    database, one = Database(), job("resp_1")
    database.conn.lost = {"resp_1"}
    beat = pulse_of(database)
    beat.add(one, lost=lambda: None)
    one.channel.say("a")
    await beat.store()
    database.conn.lost = set()
    one.channel.say("ab")
    await beat.store()
    await beat.close()
    assert [stored["numbers"] for stored in database.conn.statements] == [[0], [0, 1]]
    assert database.conn.statements[-1]["contents"] == [b"a", b"b"]


async def test_a_turn_is_passed_over_at_the_first_look(monkeypatch: Any) -> None:
    monkeypatch.setattr(pulse, "PACE_S", 0.01)
    database, one = Database(), job("resp_1")
    beat = pulse_of(database)
    looks = asyncio.Queue[None]()
    stored = beat._store

    async def counted() -> None:
        await stored()
        looks.put_nowait(None)

    monkeypatch.setattr(beat, "_store", counted)
    beat.add(one, lost=lambda: None)
    one.channel.say("a")
    await looks.get()
    assert database.conn.statements == []
    await looks.get()
    assert len(database.conn.statements) == 1
    await beat.close()


async def test_who_has_lost_a_turn_is_told_and_keeps_the_others() -> None:
    database, lost = Database(), asyncio.Event()
    beat = pulse_of(database, lease_s=0.03)
    database.conn.lost = {"resp_1"}
    kept = asyncio.Event()
    beat.add(job("resp_1"), lost=lost.set)
    beat.add(job("resp_2"), lost=kept.set)
    await asyncio.wait_for(lost.wait(), 10)
    await beat.close()
    assert database.conn.renewed[0] == {"resp_1", "resp_2"}
    assert not kept.is_set()


async def test_a_turn_that_has_ended_is_neither_stored_nor_renewed() -> None:
    database, one = Database(), job("resp_1")
    beat = pulse_of(database)
    beat.add(one, lost=lambda: None)
    one.channel.say("a")
    beat.remove(one.turn)
    await beat.store()
    await beat.close()
    assert database.conn.statements == []


async def test_a_stream_gets_only_so_far_ahead_of_what_is_stored_and_then_goes_on_with_all_of_it() -> None:
    one = job("resp_1")
    cuts, unkept = one.channel.cuts, one.channel.unkept
    assert cuts is not None
    assert unkept is not None
    for length in range(1, MOST_UNKEPT + 51):
        one.channel.say("a" * length)
    assert len(cuts.text) == MOST_UNKEPT
    unkept.kept(chunk.number for chunk in unkept.chunks())
    one.channel.say("a" * (MOST_UNKEPT + 51))
    assert cuts.pieces[-1] == 51
    assert [chunk.pieces for chunk in unkept.chunks()] == [(51,)]
    assert one.channel.view.text == cuts.text
