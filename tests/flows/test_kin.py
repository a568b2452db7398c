"""What a turn takes from relatives after an upgrade, and what it does not."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from sqlalchemy import Connection, Engine

from service import erasure_flow
from service.domain.events import ConversationId, KvRebuilt, PlanKind
from service.domain.evidence import Published
from service.domain.head import Head
from service.domain.plan import RebuildQueue
from service.store import artifacts, rebuilds
from service.store.rebuilds import Rebuild, RebuildState
from service.turn_flow import Pinned, take_rebuilt
from tests.flows.fleet import ACME, NOW, Running, accept, add_engine, events_of, move_alias, pin, published
from tests.flows.forks import ask, fork, serving

HISTORY = "h" * 60


@pytest.fixture
def parent(conn: Connection) -> ConversationId:
    """With a history that is worth a rebuild, and forks that have nothing of their own yet; the alias is on another revision since."""
    serving(conn)
    chat = ask(conn, HISTORY).conversation
    move_alias(conn, add_engine(conn, "b", "boot_b"))
    return chat


def next_turn(conn: Connection, conversation: ConversationId) -> Running:
    turn = accept(conn, conversation=conversation).turn
    return Running(conversation=conversation, turn=turn)


def waits(conn: Connection, conversation: ConversationId) -> Pinned:
    pinned = pin(conn, next_turn(conn, conversation))
    assert pinned.pinned.plan is PlanKind.REBUILD
    assert pinned.rebuild == pinned.pinned.rebuild
    return pinned


def row(conn: Connection, rebuild: str | None) -> Rebuild:
    found = rebuilds.find(conn, rebuild or "")
    assert found is not None
    return found


def test_the_row_stays_the_relatives_and_nothing_is_offered_twice(
    conn: Connection, parent: ConversationId
) -> None:
    first, second = (waits(conn, fork(conn, parent)) for _ in range(2))
    assert first.rebuild == second.rebuild
    assert row(conn, first.rebuild).turn == first.pinned.turn
    assert second.pinned.offer is None
    assert second.transcript is None


def test_a_fork_of_a_fork_finds_what_was_forked_first(conn: Connection, parent: ConversationId) -> None:
    child = fork(conn, parent)
    grandchild = fork(conn, child)
    assert waits(conn, grandchild).rebuild == waits(conn, parent).rebuild


def warm_up(conn: Connection, conversation: ConversationId, *, like: Rebuild) -> None:
    rebuilds.enqueue(
        conn,
        rebuild="rb_warm",
        tenant=ACME,
        conversation=conversation,
        turn=like.turn,
        attempt=9,
        revision=like.revision,
        offer=None,
        tokens_total=like.tokens_total,
        queue=RebuildQueue.BACKGROUND,
    )


def test_a_warm_up_of_a_relative_is_not_waited_for(conn: Connection, parent: ConversationId) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    first = waits(conn, one)
    made = row(conn, first.rebuild)
    rebuilds.end_by_hand(conn, made.id, RebuildState.FAILED, "a test")
    warm_up(conn, one, like=made)
    assert waits(conn, other).rebuild != "rb_warm"


def test_its_own_warm_up_comes_before_a_relatives_rebuild(conn: Connection, parent: ConversationId) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    made = row(conn, waits(conn, one).rebuild)
    warm_up(conn, other, like=made)
    assert waits(conn, other).rebuild == "rb_warm"
    joined = row(conn, "rb_warm")
    assert (joined.queue, joined.conversation) == (RebuildQueue.INTERACTIVE, other)
    assert joined.turn != made.turn


def test_kv_that_a_relative_has_is_counted_as_far_as_it_is_shared(
    conn: Connection, parent: ConversationId
) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    engine = waits(conn, one).engine
    artifacts.record(conn, tenant=ACME, conversation=one, published=published(engine, tokens=900), now=NOW)
    pinned = pin(conn, next_turn(conn, other))
    assert (pinned.pinned.plan, pinned.pinned.offer) == (
        PlanKind.REUSE,
        published(engine).artifact,
    )
    assert pinned.rebuild is None


@pytest.mark.parametrize(("tokens", "plan"), [(52, PlanKind.REBUILD), (54, PlanKind.REUSE)])
def test_kv_of_a_relative_that_leaves_a_rebuilds_worth_is_left(
    conn: Connection, parent: ConversationId, tokens: int, plan: PlanKind
) -> None:
    """Of 61 tokens; 8 are worth a rebuild."""
    one, other = fork(conn, parent), fork(conn, parent)
    pinned = waits(conn, one)
    rebuilds.end_by_hand(conn, str(pinned.rebuild), RebuildState.FAILED, "a test")
    made = published(pinned.engine, tokens=tokens)
    artifacts.record(conn, tenant=ACME, conversation=one, published=made, now=NOW)
    assert pin(conn, next_turn(conn, other)).pinned.plan is plan


def test_a_relative_that_was_erased_has_nothing(conn: Connection, parent: ConversationId) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    first = waits(conn, one)
    made = published(first.engine, tokens=60)
    artifacts.record(conn, tenant=ACME, conversation=one, published=made, now=NOW)
    erasure_flow.erase_conversation(
        conn, tenant=ACME, conversation=one, by="somebody", reason="they asked", now=NOW
    )
    assert waits(conn, other).rebuild != first.rebuild


@pytest.mark.parametrize(("first", "second"), [("long", "fresh"), ("fresh", "long")])
def test_a_long_part_of_ones_own_is_not_shared(conn: Connection, first: str, second: str) -> None:
    """Neither waited for, nor left to be prefilled behind what is shared."""
    serving(conn)
    chat = ask(conn, HISTORY).conversation
    forks = {"long": fork(conn, chat), "fresh": fork(conn, chat)}
    ask(conn, "l" * 20, conversation=forks["long"])
    move_alias(conn, add_engine(conn, "b", "boot_b"))
    assert waits(conn, forks[first]).rebuild != waits(conn, forks[second]).rebuild


def test_kv_of_a_relatives_own_part_is_not_counted(conn: Connection) -> None:
    """However long it is: what is shared leaves a rebuild's worth here."""
    serving(conn)
    chat = ask(conn, HISTORY).conversation
    fresh, long = fork(conn, chat), fork(conn, chat)
    ask(conn, "l" * 20, conversation=long)
    move_alias(conn, add_engine(conn, "b", "boot_b"))
    pinned = waits(conn, fresh)
    rebuilds.end_by_hand(conn, str(pinned.rebuild), RebuildState.FAILED, "a test")
    artifacts.record(
        conn, tenant=ACME, conversation=fresh, published=published(pinned.engine, tokens=900), now=NOW
    )
    waits(conn, long)


def test_the_second_of_two_at_once_waits_until_the_first_is_planned(engine: Engine) -> None:
    with engine.begin() as conn:
        serving(conn)
        chat = ask(conn, HISTORY).conversation
        move_alias(conn, add_engine(conn, "b", "boot_b"))
        turns = [next_turn(conn, fork(conn, chat)) for _ in range(2)]

    def planned(turn: Running) -> str | None:
        with engine.begin() as conn:
            return pin(conn, turn).rebuild

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as conn:
            first = pin(conn, turns[0]).rebuild
            second = pool.submit(planned, turns[1])
            wait([second], timeout=1)
            assert not second.done()
        assert second.result() == first


def test_erasing_who_waited_too_leaves_the_kv_of_whose_it_is(
    conn: Connection, parent: ConversationId
) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    first, second = waits(conn, one), waits(conn, other)
    made = done(conn, first)
    artifacts.record(conn, tenant=ACME, conversation=one, published=made, now=NOW)
    for pinned in (first, second):
        take(conn, pinned)
    erased = [
        erasure_flow.erase_conversation(
            conn, tenant=ACME, conversation=chat, by="somebody", reason="they asked", now=NOW
        )
        for chat in (other, one)
    ]
    assert [made.artifact in erasure.artifacts for erasure in erased] == [False, True]


def done(conn: Connection, pinned: Pinned) -> Published:
    """Its rebuild."""
    claim = rebuilds.claim(conn, rebuild=str(pinned.rebuild), owner="worker", lease_s=60)
    assert claim is not None
    made = published(pinned.engine, tokens=900)
    rebuilds.finish(
        conn,
        rebuild=claim.rebuild,
        fence=claim.fence,
        artifact=made.artifact,
        engine_boot=made.producer,
        tokens=made.tokens,
        refusal=None,
    )
    return made


def take(conn: Connection, pinned: Pinned) -> Head:
    return take_rebuilt(
        conn,
        tenant=ACME,
        conversation=pinned.head.id,
        pinned=pinned.pinned,
        done=row(conn, pinned.rebuild),
        now=NOW,
    )


def test_what_is_done_is_recorded_once_for_each_that_waited(conn: Connection, parent: ConversationId) -> None:
    one, other = fork(conn, parent), fork(conn, parent)
    first, second = waits(conn, one), waits(conn, other)
    done(conn, first)
    for pinned, told in ((first, 0), (second, 1)):
        head = take(conn, pinned)
        running = Running(conversation=pinned.head.id, turn=pinned.pinned.turn)
        events = [event for event in events_of(conn, running) if isinstance(event, KvRebuilt)]
        assert len(events) == told, "its own turn is told by the worker"
        assert (head.turns[running.turn].rebuilt is not None) == bool(told)
        assert [event.tokens for event in events] == [head.window_tokens] * told
