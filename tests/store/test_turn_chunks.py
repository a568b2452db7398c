"""What running turns have said: kept by their owner alone, read in order, and gone with the turn."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.cuts import Chunk
from service.domain.events import TenantId, TurnId
from service.store import turn_chunks, turns
from service.store.turn_chunks import Said
from service.store.turns import Run
from tests.store.histories import ACME, CHAT, TURN, V13

FIRST = Chunk(number=0, claim=0, attempt=1, revision=V13, pieces=(2, 1), text="a\x00\ud800")
USUAL = Run()
SECOND = replace(FIRST, number=1, pieces=(), text="", attempt=2)


def open_turn(conn: Connection, turn: TurnId = TURN, *, owner: str = "api", run: Run = USUAL) -> None:
    turns.open_turn(
        conn,
        tenant=ACME,
        turn=turn,
        conversation=CHAT,
        idempotency_key=None,
        request_hash="h",
        owner=owner,
        lease_s=60,
        run=run,
    )


def keep(conn: Connection, *chunks: Chunk, owner: str = "api", tenant: TenantId = ACME) -> set[TurnId]:
    said = [Said(tenant=tenant, turn=TURN, chunk=chunk) for chunk in chunks]
    return turn_chunks.keep(conn, said, owner=owner)


def read(conn: Connection) -> list[Chunk]:
    return turn_chunks.read(conn, tenant=ACME, turn=TURN)


def test_chunks_come_back_as_they_were_in_their_order(conn: Connection) -> None:
    open_turn(conn)
    assert keep(conn, SECOND, FIRST) == {TURN}
    assert read(conn) == [FIRST, SECOND]


def test_kept_again_after_a_lost_reply_they_are_there_once(conn: Connection) -> None:
    open_turn(conn)
    keep(conn, FIRST)
    assert keep(conn, FIRST, SECOND) == {TURN}
    assert read(conn) == [FIRST, SECOND]


@pytest.mark.parametrize("other", [{"owner": "another"}, {"tenant": TenantId("other")}])
def test_nobody_else_adds_any(conn: Connection, other: dict[str, str]) -> None:
    open_turn(conn)
    kept = keep(conn, FIRST, **other)  # type: ignore[arg-type]
    assert read(conn) == []
    assert kept == (set() if "owner" in other else {TURN})


def test_none_is_added_once_the_turn_has_ended_and_those_there_were_are_gone(conn: Connection) -> None:
    open_turn(conn)
    keep(conn, FIRST)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    assert read(conn) == []
    assert keep(conn, SECOND) == set()
    assert read(conn) == []


def test_a_turn_that_is_busy_is_left_for_later_and_keeps_no_other_waiting(engine: Engine) -> None:
    with engine.begin() as conn:
        open_turn(conn)
    with engine.begin() as busy, engine.begin() as conn:
        busy.execute(text("UPDATE turns SET closed = closed"))
        assert keep(conn, FIRST) == set()
    with engine.begin() as conn:
        assert keep(conn, FIRST) == {TURN}


def test_progress_shows_what_is_new_and_how_the_turn_stands(conn: Connection) -> None:
    open_turn(conn, run=Run(streamed=True))
    keep(conn, FIRST, SECOND)
    seen = turn_chunks.progress(conn, tenant=ACME, turn=TURN, since=1)
    assert seen is not None
    assert seen.chunks == (SECOND,)
    assert (seen.closed, seen.waits, seen.background, seen.streamed) == (False, False, False, True)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    ended = turn_chunks.progress(conn, tenant=ACME, turn=TURN, since=0)
    assert ended is not None
    assert (ended.closed, ended.chunks) == (True, ())


def test_there_is_no_progress_of_what_is_not_there(conn: Connection) -> None:
    open_turn(conn)
    assert turn_chunks.progress(conn, tenant=TenantId("other"), turn=TURN, since=0) is None


def test_a_conversation_is_forgotten_whole(conn: Connection) -> None:
    open_turn(conn)
    keep(conn, FIRST)
    turn_chunks.forget_conversation(conn, tenant=ACME, conversation=CHAT)
    assert read(conn) == []


def test_what_an_earlier_version_left_behind_is_forgotten(conn: Connection) -> None:
    open_turn(conn)
    keep(conn, FIRST)
    turn_chunks.forget_ended(conn)
    assert read(conn) == [FIRST]
    conn.execute(text("UPDATE turns SET closed = true, owner = NULL, lease_expires_at = NULL"))
    turn_chunks.forget_ended(conn)
    assert read(conn) == []
