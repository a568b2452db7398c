"""docs/audit.md is true: every query runs as the auditor on a history that the flows made, and gives what is printed."""

import re
import shlex

import pytest
from sqlalchemy import Connection, text

from tests.audit.document import DOCUMENT, Question, ask, questions

AT_LEAST = 20


@pytest.mark.parametrize("question", questions(), ids=lambda q: f"question {q.number}")
def test_a_question_has_the_answer_that_is_printed(history: Connection, question: Question) -> None:
    result = ask(history, question.query)
    history.rollback()
    assert result == question.result, "run `python -m tests.audit.document` and look at the difference"


def test_the_line_that_an_auditor_begins_with_finds_no_cross_revision_read(history: Connection) -> None:
    line = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith("psql"))
    words = shlex.split(line)
    statements = [words[at + 1] for at, word in enumerate(words) if word == "-c"]
    assert statements[0] == "SET ROLE everturn_auditor"
    found = [history.exec_driver_sql(statement) for statement in statements][-1].scalar_one()
    history.rollback()
    history.exec_driver_sql("RESET ROLE")
    history.rollback()
    assert found == 0


def elsewhere() -> list[tuple[str, str]]:
    """Statements of other pages, with the page."""
    pages = [page for page in DOCUMENT.parent.rglob("*.md") if page != DOCUMENT]
    blocks = [
        (page.name, re.findall(r"^```sql\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
        for page in pages
    ]
    statements = [
        (name, re.split(r";[^\n]*$", block, flags=re.MULTILINE)) for name, found in blocks for block in found
    ]
    return [(name, one.strip()) for name, several in statements for one in several if one.strip()]


@pytest.mark.parametrize(("page", "statement"), elsewhere())
def test_a_statement_of_another_page_is_answered_too(history: Connection, page: str, statement: str) -> None:
    assert ask(history, statement).startswith(("turn_id", "rollout_id", "step", "position"))
    history.rollback()


def test_there_are_twenty_questions_and_none_is_left_out() -> None:
    numbers = [q.number for q in questions()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= AT_LEAST
    assert len(numbers) == DOCUMENT.read_text().count("```sql")


def test_every_view_is_asked_by_some_question(history: Connection) -> None:
    names = set(history.execute(text("SELECT viewname FROM pg_views WHERE schemaname = 'audit'")).scalars())
    history.rollback()
    asked = " ".join(q.query for q in questions())
    assert {name for name in names if f"audit.{name}" not in asked} == set()


def test_the_history_has_what_the_questions_are_about(history: Connection) -> None:
    counts = history.execute(text("SELECT type, count(*) FROM events GROUP BY type")).all()
    history.rollback()
    found = {name for name, _ in counts}
    assert {"kv.refused", "kv.rebuilt", "attempt.failed", "turn.failed", "conversation.erased"} <= found
