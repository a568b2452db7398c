"""`everturn audit conversation` of a fork and of its parent: where the history comes from, and what was made of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.domain.events import ConversationId
from stack.cli import main
from tests.flows.fleet import Running
from tests.flows.forks import ask, fork, serving

Report = Callable[..., str]


@pytest.fixture
def family(engine: Engine) -> tuple[Running, ConversationId, ConversationId]:
    """A parent, its fork with a turn of its own, and a fork of that one without."""
    with engine.begin() as conn:
        serving(conn)
        parent = ask(conn, "one")
        ask(conn, "two", parent.conversation)
        child = fork(conn, parent.conversation, parent.turn)
        branch = ask(conn, "branch", child)
        return parent, child, fork(conn, child, branch.turn)


@pytest.fixture
def report(database: str, capsys: pytest.CaptureFixture[str]) -> Report:
    def told(conversation: str, *arguments: str) -> str:
        given = ("audit", "conversation", conversation, *arguments, "--database-url", database)
        assert main(list(given)) == 0
        return capsys.readouterr().out

    return told


def test_a_report_tells_what_it_was_forked_of_and_into(
    family: tuple[Running, ConversationId, ConversationId], report: Report
) -> None:
    parent, child, grandchild = family
    assert f"forked into {child} at" in report(parent.conversation)
    told = report(child)
    assert f"after {parent.turn}, version " in told
    assert f" of {parent.conversation}\n" in told
    assert f"forked into {grandchild} at" in told
    assert "turn 1" in told
    assert f" of {child}, a fork of {parent.conversation}\n" in report(grandchild)
    page = report(grandchild, "--format", "html")
    assert f"{child}, a fork of {parent.conversation}" in page
    document = json.loads(report(child, "--format", "json"))
    assert [row["ancestors"] for row in document["forks"]] == [[parent.conversation]]
    assert [row["conversation_id"] for row in document["forked_into"]] == [grandchild]


def test_a_parent_that_is_not_what_was_forked_any_more_is_to_be_looked_into(
    family: tuple[Running, ConversationId, ConversationId],
    owner_engine: Engine,
    report: Report,
    database: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    parent, child, _ = family
    assert "no divergence" in report(child)
    with owner_engine.begin() as conn:
        conn.execute(text("ALTER TABLE events DISABLE TRIGGER append_only"))
        conn.execute(
            text("UPDATE events SET chain = sha256(chain) WHERE stream = :parent"),
            {"parent": parent.conversation},
        )
    assert f"1 to look into: it was forked from a history of {parent.conversation}" in report(child)
    assert main(["--data", str(tmp_path), "audit", "verify", "--database-url", database]) == 1
    assert f"it was forked from a history of {parent.conversation} that is another one now" in (
        capsys.readouterr().out
    )
