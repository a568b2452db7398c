"""Readers of the global order see every committed event once, whatever commits out of order, rolls back or lingers."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.errors import InvalidInput
from service.store import event_store
from service.store.connection import make_engine
from service.store.feed import PAGE, Cursor, Published, read_lag, read_page, to_json
from tests.store.histories import append, completed, created, pinned, said, started, store
from tests.store.horizon import wait_for_others
from tests.store.test_query_plans import plan_of

__all__ = ["plan_of"]

START = Cursor()


def page(engine: Engine, after: Cursor = START, limit: int = 100) -> tuple[Published, ...]:
    with engine.connect() as conn:
        wait_for_others(conn)
        return read_page(conn, after=after, limit=limit)


def follow(engine: Engine, limit: int) -> Iterator[Published]:
    cursor = Cursor()
    while found := page(engine, cursor, limit):
        yield from found
        cursor = found[-1].cursor


def streams(events: tuple[Published, ...]) -> list[str]:
    return [event.stream for event in events]


def test_the_feed_gives_events_in_order_and_goes_on_after_a_cursor(engine: Engine) -> None:
    store(engine, created(), said("one"), said("two"))
    found = page(engine)
    assert [event.version for event in found] == [1, 2, 3]
    assert page(engine, found[0].cursor) == found[1:]
    assert page(engine, found[-1].cursor) == ()
    assert [*follow(engine, 1)] == list(found)


def test_p1_an_event_that_commits_late_is_not_passed_over(engine: Engine) -> None:
    with engine.connect() as early, early.begin() as transaction:
        append(early, created(), stream="early")
        store(engine, created(), stream="late")
        assert page(engine) == ()
        transaction.commit()
    assert streams(page(engine)) == ["early", "late"]


def test_p1_a_later_transaction_with_the_earlier_position_comes_after(engine: Engine) -> None:
    """A reader by position alone would have read the other one, and then never this one."""
    with engine.connect() as first, engine.connect() as second:
        first.execute(text("SELECT pg_current_xact_id()"))
        append(second, created(), stream="second")
        append(first, created(), stream="first")
        first.commit()
        [seen] = page(engine)
        assert seen.stream == "first"
        second.commit()
        [rest] = page(engine, seen.cursor)
    assert rest.stream == "second"
    assert rest.cursor.position < seen.cursor.position


def test_p1_a_rollback_leaves_a_gap_that_nobody_waits_at(engine: Engine) -> None:
    store(engine, created(), stream="one")
    with engine.connect() as conn:
        append(conn, created(), stream="never")
        conn.rollback()
    store(engine, created(), stream="two")
    assert streams(page(engine)) == ["one", "two"]


def test_a_long_foreign_transaction_holds_back_what_follows_it_and_that_is_shown(
    engine: Engine, database: str
) -> None:
    store(engine, created(), stream="before")
    with psycopg.connect(database.replace("postgresql+psycopg", "postgresql")) as foreign:
        foreign.execute("SELECT pg_current_xact_id()")
        store(engine, created(), said("hi"), stream="behind")
        assert streams(page(engine)) == ["before"]
        with engine.connect() as conn:
            lag = read_lag(conn)
        assert lag.waiting == 2
        assert lag.seconds > 0
        foreign.rollback()
    assert streams(page(engine)) == ["before", "behind", "behind"]
    with engine.connect() as conn:
        assert read_lag(conn).waiting == 0


def test_a_foreign_reader_holds_back_nothing(engine: Engine, database: str) -> None:
    with psycopg.connect(database.replace("postgresql+psycopg", "postgresql")) as foreign:
        foreign.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM events")
        store(engine, created())
        assert len(page(engine)) == 1


def test_p1_a_reader_that_keeps_up_with_many_writers_sees_each_event_once(database: str) -> None:
    engine = make_engine(database, application_name="writers", pool_size=12)
    chance = Random(7)  # noqa: S311 no secret
    fates = [chance.random() < 0.2 for _ in range(160)]

    def write(number: int) -> None:
        with engine.connect() as conn:
            append(conn, created(), said("x"), stream=f"conv_{number}")
            if fates[number]:
                conn.rollback()
            else:
                conn.commit()

    seen: list[Published] = []
    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, number) for number in range(len(fates))]
        while not all(writer.done() for writer in writers) or page(engine, _last(seen)):
            seen.extend(page(engine, _last(seen), limit=7))
    for writer in writers:
        writer.result()
    engine.dispose()
    kept = {f"conv_{number}" for number, lost in enumerate(fates) if not lost}
    assert len({event.cursor.position for event in seen}) == len(seen) == 2 * len(kept)
    assert set(streams(tuple(seen))) == kept
    assert [event.cursor for event in seen] == sorted(
        (event.cursor for event in seen), key=lambda cursor: (cursor.txid, cursor.position)
    )


def _last(seen: list[Published]) -> Cursor:
    return seen[-1].cursor if seen else Cursor()


def test_words_and_token_ids_come_only_when_asked_for(engine: Engine) -> None:
    store(engine, created(), said("hi \x00 \ud800"), started(), pinned(), completed())
    shown = page(engine)
    assert [(event.content, event.tokens) for event in shown] == [(None, None)] * 5
    with engine.connect() as conn:
        _, message, _, _, turn = map(to_json, read_page(conn, after=Cursor(), limit=9, contents=True))
    assert message["content"] == "hi \x00 \ud800"
    assert (turn["content"], turn["tokens"]) == ("Paris.", (1, 2, 3, 4, 5))


@pytest.mark.parametrize("contents", [False, True])
def test_a_page_is_read_from_the_index(
    plan_of: Callable[[str], str], owner_conn: Connection, contents: bool
) -> None:
    plan_of("SELECT 1")
    given = {"txid": "7", "position": 3, "limit": 5, "contents": contents}
    shown = "\n".join(owner_conn.execute(text(f"EXPLAIN {PAGE.text}"), given).scalars())
    assert "Index Scan using ix_events_feed on events" in shown
    assert "Sort" not in shown
    assert "Seq Scan" not in shown


def test_p2_no_append_notifies(owner_engine: Engine) -> None:
    """NOTIFY makes the transactions that use it commit one after the other: a follower asks again instead."""
    with owner_engine.connect() as conn:
        bodies = conn.execute(
            text(
                "SELECT prosrc FROM pg_proc WHERE pronamespace IN ('public'::regnamespace, 'audit'::regnamespace)"
            )
        ).scalars()
        assert [body for body in bodies if "notify" in body.lower()] == []
        triggers = conn.execute(
            text(
                "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgtype & 4 <> 0"
                " AND tgrelid IN ('events'::regclass, 'event_contents'::regclass)"
            )
        )
        assert triggers.scalars().all() == []
    sources = [*Path(event_store.__file__).parent.glob("*.py")]
    assert [path.name for path in sources if re.search(r"\bnotify\b", path.read_text(), re.IGNORECASE)] == []


@pytest.mark.parametrize("text", ["7", "-1-2", "a-b", "7-8-9", "", "1" * 30 + "-1"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="'after' is no cursor"):
        Cursor.parse(text)


def test_a_cursor_comes_back_from_its_text() -> None:
    assert Cursor.parse(str(Cursor(txid=12, position=34))) == Cursor(txid=12, position=34)
