"""docs/audit.md is true: every query runs as the auditor on a history that the flows made, and gives what is printed."""

import pytest
from sqlalchemy import Connection, text

from tests.audit.document import DOCUMENT, Question, ask, questions

AT_LEAST = 20


@pytest.mark.parametrize("question", questions(), ids=lambda q: f"question {q.number}")
def test_a_question_has_the_answer_that_is_printed(history: Connection, question: Question) -> None:
    result = ask(history, question.query)
    history.rollback()
    assert result == question.result, "run `python -m tests.audit.document` and look at the difference"


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
