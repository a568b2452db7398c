"""Who talks on while others are warmed is warmed again, so that little is left for the first turn on the target."""

import pytest
from sqlalchemy import Connection, text

from service import rebuild_flow
from service.domain.rollout_events import RolloutState
from service.rollout_advance_flow import ROUNDS
from service.store import artifacts, fleet, rebuilds, rollout_facts
from tests.flows.fleet import ACME, NOW, published
from tests.flows.rollouts import Scene, scene

SHIFTING = (RolloutState.SHIFTING, 100)
SAID = 40


@pytest.fixture
def at(conn: Connection) -> Scene:
    return scene(conn)


def kv(number: int) -> str:
    return f"kv_{number:032x}"


def skipped(at: Scene) -> list[str | None]:
    return list(at.conn.execute(text("SELECT skipped FROM rollout_warmups ORDER BY place")).scalars())


def test_who_talks_on_is_warmed_again_from_what_it_has_on_the_target(at: Scene) -> None:
    at.chat()
    chat = at.chat()
    rollout = at.start(warm=2)
    at.step(rollout)
    for number, rebuild in enumerate(at.step(rollout)):
        at.rebuilt(rebuild, kv(number))
    at.talks_on(chat, SAID)
    [again] = at.step(rollout)
    row = rebuilds.find(at.conn, again)
    assert row is not None
    assert (row.conversation, row.offer, row.tokens_total) == (chat.conversation, kv(0), 103 + SAID)
    assert at.where(rollout) == (RolloutState.WARMING, 0)
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.total, warmth.done, warmth.running) == (2, 1, 1)
    at.rebuilt(again, kv(9), tokens=128)
    assert at.step(rollout) == []
    assert at.where(rollout) == SHIFTING
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.total, warmth.done, warmth.tokens_asked) == (2, 2, 103 + 103 + 103 + SAID - 96)


def test_nobody_is_warmed_again_while_others_are_still_to_be_warmed(at: Scene) -> None:
    chats = [at.chat(), at.chat()]
    rollout = at.start(warm=2)
    at.step(rollout)
    first, _ = at.step(rollout)
    at.rebuilt(first, kv(1))
    at.talks_on(chats[1], SAID)
    assert at.step(rollout) == []
    assert len(skipped(at)) == 2


def test_who_said_little_since_is_not_warmed_again(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    at.rebuilt(rebuild, kv(1), tokens=100)
    at.talks_on(chat, 4)
    assert at.step(rollout) == []
    assert at.where(rollout) == SHIFTING
    assert skipped(at) == [None, "it has KV of the target"]
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.total, warmth.done, warmth.skipped) == (1, 1, 0)


def test_who_never_rests_is_left_as_warm_as_it_is_in_the_end(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    for number in range(ROUNDS):
        [rebuild] = at.step(rollout)
        at.rebuilt(rebuild, kv(number))
        chat = at.talks_on(chat, SAID)
    assert at.step(rollout) == []
    assert at.where(rollout) == SHIFTING


def test_only_what_is_left_counts_against_the_pace(at: Scene) -> None:
    chats = [at.chat(), at.chat()]
    rollout = at.start(warm=2, pace=10)
    at.step(rollout)
    rung = [*at.step(rollout), *at.step(rollout, later_s=10)]
    for number, rebuild in enumerate(rung):
        at.rebuilt(rebuild, kv(number))
    for chat in chats:
        at.talks_on(chat, SAID)
    assert len(rung) == 2
    assert at.step(rollout) == [], "206 tokens were asked for, and 110 are allowed by now"
    assert len(at.step(rollout, later_s=15)) == 2, "260 are, and 47 of each are left"
    assert rollout_facts.lately(at.conn, rollout, seconds=60).tokens_asked == 206 + 47 + 47


def test_whose_warm_up_was_cancelled_is_not_warmed_again(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    rebuild_flow.cancel(at.conn, rebuild, by="ada")
    at.talks_on(chat, SAID)
    assert at.step(rollout) == []
    assert at.where(rollout) == SHIFTING


def test_the_most_that_there_is_of_it_is_offered(at: Scene) -> None:
    chat = at.talks_on(at.chat(), SAID)
    engine = next(e for e in fleet.live_engines(at.conn) if e.revision == at.new)
    for number, tokens in enumerate((32, 96, 64)):
        made = published(engine, kv(number), tokens)
        artifacts.record(at.conn, tenant=ACME, conversation=chat.conversation, published=made, now=NOW)
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    row = rebuilds.find(at.conn, rebuild)
    assert row is not None
    assert row.offer == kv(1)
