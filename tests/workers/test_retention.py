"""Rounds of retention: all of it in the end, a few at a time, and one that cannot go keeps no other."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from service import retention_flow
from service.domain.errors import VersionConflict
from service.domain.events import TenantId
from service.retention_flow import Outcome
from service.store import event_store, keys, retention
from service.store.connection import make_engine
from service.store.retention import Overdue
from tests.store.histories import ACME, NOW, append, created, said, store
from workers import retention as rounds
from workers.retention import AGAIN_S, Rounds, outcomes

LATE = NOW + timedelta(days=400)
OTHER = TenantId("other")


@pytest.fixture
def chats(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Five of acme, which are too old by now, and one of a tenant that keeps everything."""
    monkeypatch.setattr(rounds, "PAGE", 2)
    made = [f"conv_{number}" for number in range(5)]
    with engine.begin() as conn:
        for tenant in (ACME, OTHER):
            keys.create_tenant(conn, tenant)
        retention.set_retention(conn, ACME, after_days=30, by="test", now=NOW)
        append(conn, created(), said("hi"), tenant=OTHER, stream="conv_kept")
    for chat in made:
        store(engine, created(), said("hi"), stream=chat)
    return made


def _lose(_: int) -> Outcome:
    raise ConnectionError


def left(engine: Engine) -> list[str]:
    with engine.begin() as conn:
        return list(conn.execute(text("SELECT DISTINCT stream FROM event_contents ORDER BY 1")).scalars())


def test_all_that_is_too_old_is_erased_and_no_other_tenants(engine: Engine, chats: list[str]) -> None:
    told = [*outcomes(engine, LATE, dry_run=False)]
    assert [(one.overdue.conversation, one.kept) for one in told] == [(chat, None) for chat in chats]
    assert left(engine) == ["conv_kept"]
    assert [*outcomes(engine, LATE, dry_run=False)] == []


def test_a_dry_run_tells_all_and_erases_nothing(engine: Engine, chats: list[str]) -> None:
    assert [one.kept for one in outcomes(engine, LATE, dry_run=True)] == [None] * len(chats)
    assert len(left(engine)) == len(chats) + 1
    assert [*outcomes(engine, LATE, dry_run=True, tenant=OTHER)] == []


def test_one_that_cannot_be_erased_is_told_and_keeps_no_other(
    engine: Engine, chats: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    erase = retention_flow.erase_overdue

    def moved(conn: Connection, rule: Any, found: Overdue, now: Any) -> Outcome:
        outcome = erase(conn, rule, found, now)
        if found.conversation == "conv_2":
            raise VersionConflict("it moved")
        return outcome

    monkeypatch.setattr(retention_flow, "erase_overdue", moved)
    told = {one.overdue.conversation: one.kept for one in outcomes(engine, LATE, dry_run=False)}
    assert [chat for chat, kept in told.items() if kept] == ["conv_2"]
    assert left(engine) == ["conv_2", "conv_kept"]


def test_a_round_takes_few_at_each_step_and_the_next_one_waits(engine: Engine, chats: list[str]) -> None:
    work = Rounds(every_s=3600)
    assert [work.step(engine, 2) for _ in range(3)] == [2, 2, 1]
    assert left(engine) == ["conv_kept"]
    store(engine, created(), said("hi"), stream="conv_9")
    assert work.step(engine, 2) == 0
    assert left(engine) == ["conv_9", "conv_kept"]


def test_a_clock_that_is_ahead_erases_nothing_early(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's; the database's knows better."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(days=400)

    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
        retention.set_retention(conn, ACME, after_days=30, by="test", now=NOW)
        event_store.append(
            conn,
            tenant=ACME,
            stream="conv_new",
            expected_version=0,
            events=[created(), said("hi")],
            now=datetime.now(UTC),
        )
    monkeypatch.setattr(rounds, "datetime", Ahead)
    assert Rounds(every_s=3600).step(engine, 9) == 0
    assert left(engine) == ["conv_new"]


def test_of_two_clocks_the_one_that_is_behind_counts(engine: Engine) -> None:
    with engine.begin() as conn:
        assert retention.earlier_of(conn, NOW) == NOW


def test_a_round_that_lost_its_database_begins_anew(engine: Engine, chats: list[str]) -> None:
    work = Rounds(every_s=1e-9)

    def lost() -> Iterator[Outcome]:
        yield from map(_lose, [1])

    work.round = lost()
    with pytest.raises(ConnectionError):
        work.step(engine, 1)
    assert work.step(engine, 9) == len(chats)


def test_a_round_that_cannot_begin_is_tried_again_before_the_hour(
    empty_database: str, template_database: str
) -> None:
    work = Rounds(every_s=3600)
    unmigrated = make_engine(empty_database, application_name="tests")
    with pytest.raises(SQLAlchemyError):
        work.step(unmigrated, 1)
    unmigrated.dispose()
    assert work.next_s <= time.monotonic() + AGAIN_S
