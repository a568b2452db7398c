"""Turns whose process is gone or goes: handed to the workers or ended, once, with what they had said as evidence."""

import pytest
from sqlalchemy import Connection, text

from service import orphan_flow, turn_flow
from service.domain.cuts import TAKEN_OVER, Chunk
from service.domain.events import AttemptFailed, TurnCompleted, TurnFailed, TurnPinned, TurnStreamed
from service.domain.terms import OnDisconnect, Terms
from service.store import fleet, heads, turn_chunks, turn_queue, turns
from service.store.turn_chunks import Said
from service.store.turns import OpenTurn
from tests.flows.fleet import ACME, NOW, Running, accept, answered, complete, completed, events_of, pin

BACKGROUND = Terms(background=True)
CANCEL = Terms(on_disconnect=OnDisconnect.CANCEL)


def running(conn: Connection, *, streamed: bool = True, terms: Terms | None = None) -> Running:
    """A turn with an attempt under way."""
    first = answered(conn)
    complete(conn, first, completed(pin(conn, first)))
    asked = {} if terms is None else {"terms": terms}
    turn = accept(conn, conversation=first.conversation, streamed=streamed, **asked)
    made = Running(conversation=first.conversation, turn=turn.turn)
    if terms is not None and terms.background:
        assert claimed(conn, made) is not None
    pin(conn, made)
    return made


def claimed(conn: Connection, one: Running, owner: str = "worker") -> turn_queue.Claimed | None:
    return turn_queue.claim(conn, turn=one.turn, owner=owner, lease_s=60)


def say(conn: Connection, one: Running, words: str, *, claim: int = 0, owner: str = "api_test") -> None:
    revision = pinned_of(conn, one)[-1].revision
    chunk = Chunk(number=0, claim=claim, attempt=1, revision=revision, pieces=(len(words),), text=words)
    said = Said(tenant=ACME, turn=one.turn, chunk=chunk)
    assert turn_chunks.keep(conn, [said], owner=owner) == {one.turn}


def pinned_of(conn: Connection, one: Running) -> list[TurnPinned]:
    return [e for e in events_of(conn, one) if isinstance(e, TurnPinned) and e.turn == one.turn]


def expire(conn: Connection) -> None:
    conn.execute(
        text("UPDATE turns SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE NOT closed")
    )


def open_turn(one: Running) -> OpenTurn:
    return OpenTurn(tenant=ACME, conversation=one.conversation, turn=one.turn)


def settle(conn: Connection, one: Running, *, finish: bool = True) -> bool:
    return orphan_flow.settle(conn, open_turn(one), finish=finish, now=NOW)


def test_it_waits_for_a_worker_and_its_attempt_has_ended_with_what_it_had_said(conn: Connection) -> None:
    one = running(conn)
    say(conn, one, "half an ans")
    expire(conn)
    assert settle(conn, one)
    last = events_of(conn, one)[-1]
    assert isinstance(last, AttemptFailed)
    assert (last.attempt, last.partial_text) == (1, "half an ans")
    assert turn_chunks.read(conn, tenant=ACME, turn=one.turn), "whoever goes on from there needs it"
    assert claimed(conn, one) is not None
    assert pin(conn, one).pinned.attempt == 2


def test_the_process_that_comes_back_late_is_fenced_off(conn: Connection) -> None:
    one = running(conn)
    late = completed_of(conn, one)
    expire(conn)
    settle(conn, one)
    with pytest.raises(Exception, match="comes too late"):
        complete(conn, one, late)


def completed_of(conn: Connection, one: Running) -> TurnCompleted:
    pinned = pinned_of(conn, one)[-1]
    head = heads.load_head(conn, ACME, one.conversation, turn=one.turn)
    engine = fleet.live_engines(conn, {pinned.revision})[0]
    return completed(turn_flow.Pinned(head=head, pinned=pinned, engine=engine, rebuild=None))


def test_one_whose_owner_lives_is_left_to_it(conn: Connection) -> None:
    one = running(conn)
    before = events_of(conn, one)
    assert not settle(conn, one)
    assert events_of(conn, one) == before


@pytest.mark.parametrize(
    ("terms", "finish", "waits"),
    [(None, True, True), (None, False, False), (CANCEL, True, False), (BACKGROUND, False, True)],
    ids=["finish", "fail", "its client is gone", "in the background"],
)
def test_who_is_finished_and_who_fails(
    conn: Connection, terms: Terms | None, finish: bool, waits: bool
) -> None:
    one = running(conn, terms=terms)
    expire(conn)
    assert settle(conn, one, finish=finish) is waits
    last = events_of(conn, one)[-1]
    assert isinstance(last, AttemptFailed if waits else TurnFailed)
    assert waits or (isinstance(last, TurnFailed) and last.code == "orphaned")


def test_one_that_fails_keeps_how_its_stream_was_cut_and_that_more_may_have_been_sent(
    conn: Connection,
) -> None:
    one = running(conn)
    say(conn, one, "half")
    expire(conn)
    settle(conn, one, finish=False)
    lost, streamed, failed = events_of(conn, one)[-3:]
    assert isinstance(lost, AttemptFailed)
    assert isinstance(streamed, TurnStreamed)
    assert isinstance(failed, TurnFailed)
    assert (streamed.pieces, streamed.text) == ((4, TAKEN_OVER), "half")
    assert turn_chunks.read(conn, tenant=ACME, turn=one.turn) == []


def test_one_that_was_not_streamed_has_no_cuts(conn: Connection) -> None:
    one = running(conn, streamed=False)
    say(conn, one, "half")
    expire(conn)
    settle(conn, one, finish=False)
    assert [type(e) for e in events_of(conn, one)][-2:] == [AttemptFailed, TurnFailed]


def test_a_turn_that_ends_each_of_its_workers_ends_itself(conn: Connection) -> None:
    one = running(conn)
    expire(conn)
    rounds = 0
    while settle(conn, one):
        rounds += 1
        assert claimed(conn, one) is not None
        pin(conn, one)
        expire(conn)
    assert rounds == orphan_flow.MOST_CLAIMS
    assert isinstance(events_of(conn, one)[-1], TurnFailed)


def test_one_past_its_deadline_is_not_finished(conn: Connection) -> None:
    one = running(conn, terms=Terms(background=True, deadline_s=3600))
    conn.execute(text("UPDATE turns SET deadline_at = clock_timestamp() WHERE NOT closed"))
    expire(conn)
    assert not settle(conn, one)
    last = events_of(conn, one)[-1]
    assert isinstance(last, TurnFailed)
    assert last.code == "deadline_exceeded"


def test_a_stopping_process_hands_over_what_is_its_own(conn: Connection) -> None:
    one = running(conn)
    assert not orphan_flow.hand_over(conn, open_turn(one), owner="another", finish=True, now=NOW)
    assert orphan_flow.hand_over(conn, open_turn(one), owner="api_test", finish=True, now=NOW)
    assert claimed(conn, one) is not None


def test_an_attempt_that_its_owner_was_not_told_of_is_given_up_for_another(conn: Connection) -> None:
    one = running(conn)
    assert orphan_flow.retake(conn, open_turn(one), owner="api_test", now=NOW)
    assert pin(conn, one).pinned.attempt == 2
    assert not orphan_flow.retake(conn, open_turn(one), owner="another", now=NOW)


def test_one_that_waits_beyond_its_deadline_fails_without_a_worker(conn: Connection) -> None:
    first = answered(conn)
    complete(conn, first, completed(pin(conn, first)))
    terms = Terms(background=True, deadline_s=3600)
    turn = accept(conn, conversation=first.conversation, terms=terms)
    conn.execute(text("UPDATE turns SET deadline_at = clock_timestamp() WHERE NOT closed"))
    [overdue] = [found for found in turn_queue.overdue(conn, 10) if found.turn == turn.turn]
    orphan_flow.fail_overdue(conn, overdue, NOW)
    last = events_of(conn, first)[-1]
    assert isinstance(last, TurnFailed)
    assert last.code == "deadline_exceeded"
    assert turn_queue.overdue(conn, 10) == []
    assert not turns.orphaned(conn, 10)
