"""`everturn retention` on a real database: shown before it is done, and done to no more than was shown."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from sqlalchemy import Engine, text

from service.domain.events import ConversationForked, TurnId
from service.store import event_store, keys
from stack.cli import main
from tests.store.histories import ACME, CHAT, created, said, store
from workers import retention as rounds

NOW = datetime.now(UTC)
Run = Callable[..., list[str]]


@pytest.fixture
def run(database: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def lines(*arguments: str, status: int = 0) -> list[str]:
        assert main([*arguments, "--database-url", database]) == status
        printed = capsys.readouterr()
        return (printed.out if status == 0 else printed.err).splitlines()

    return lines


@pytest.fixture
def chats(engine: Engine) -> None:
    """One long past, one of today."""
    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
    store(engine, created(), said("old"))
    with engine.begin() as conn:
        event_store.append(
            conn, tenant=ACME, stream="conv_new", expected_version=0, events=[created(), said("new")], now=NOW
        )


def left(engine: Engine) -> list[str]:
    with engine.begin() as conn:
        return list(conn.execute(text("SELECT DISTINCT stream FROM event_contents ORDER BY 1")).scalars())


@pytest.mark.usefixtures("chats")
def test_a_clock_that_is_ahead_erases_nothing_early(
    run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(days=400)

    run("retention", "set", "acme", "--days", "30")
    monkeypatch.setattr(rounds, "datetime", Ahead)
    assert run("retention", "run")[-1] == "1 are erased, 0 stay"
    assert left(engine) == ["conv_new"]


@pytest.mark.usefixtures("chats")
def test_what_would_be_erased_is_shown_and_then_erased(run: Run, engine: Engine) -> None:
    assert run("retention", "show") == ["acme: kept until somebody erases them"]
    assert run("retention", "run") == ["0 are erased, 0 stay"]
    [told] = run("retention", "set", "acme", "--days", "30")
    assert "30 days after their last turn" in told
    [shown] = run("retention", "show")
    assert shown.startswith("acme: erased after 30 days, set by cli:")
    would, count = run("retention", "run", "--dry-run")
    assert would == "acme conv_1, last turn 2026-01-02 03:04: would be erased"
    assert count == "1 would be erased, 0 stay"
    assert left(engine) == ["conv_1", "conv_new"]
    assert run("retention", "run", "--tenant", "acme")[0].endswith("is erased")
    assert left(engine) == ["conv_new"]
    assert run("retention", "clear", "acme") == ["conversations of acme are kept until somebody erases them"]
    assert run("retention", "show") == ["acme: kept until somebody erases them"]


@pytest.mark.usefixtures("chats")
def test_what_a_younger_fork_needs_stays_and_the_fork_is_named(run: Run, engine: Engine) -> None:
    forked = ConversationForked(parent=CHAT, parent_version=2, turn=TurnId("resp_1"), parent_chain="ab" * 32)
    with engine.begin() as conn:
        event_store.append(
            conn,
            tenant=ACME,
            stream="conv_fork",
            expected_version=0,
            events=[created(), forked],
            now=NOW - timedelta(days=1),
        )
    run("retention", "set", "acme", "--days", "30")
    line, count = run("retention", "run")
    assert "conv_1, last turn 2026-01-02 03:04: stays, its fork stays: conv_fork was gone on with" in line
    assert count == "0 are erased, 1 stay"
    assert left(engine) == ["conv_1", "conv_new"]


@pytest.mark.parametrize("days", ["0", "-1", "x", "36501", "1.5"])
def test_a_number_of_days_that_is_none_is_refused(
    days: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["retention", "set", "acme", "--days", days, "--database-url", database])
    assert "is not a number of days from 1 to 36500" in capsys.readouterr().err


def test_a_tenant_that_is_none_is_named(run: Run) -> None:
    for arguments in (("set", "nobody", "--days", "3"), ("clear", "nobody")):
        assert run("retention", *arguments, status=1) == [
            "everturn: No tenant with id 'nobody'. `everturn tenants ls` lists them."
        ]
