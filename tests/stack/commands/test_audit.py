"""`everturn audit conversation` tells the whole of a conversation, as text, JSON and one page; `verify` and `checkpoint`."""

import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import text

from service.store.connection import make_engine
from stack import conversation_report
from stack.cli import main
from stack.postgres import EmbeddedPostgres
from tests.audit.document import questions
from tests.audit.told import told_database

CHAT = "conv_0001"
OTHER = "conv_0010"


@pytest.fixture(scope="module")
def told(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with told_database(postgres_server, template_database) as url:
        yield url


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [name for name, _ in attrs if name in ("src", "href")]
        self.found += [tag] * (tag in ("script", "link", "img"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, url: str, status: int = 0) -> str:
    assert main(["audit", *arguments, "--database-url", url]) == status
    out = capsys.readouterr()
    return out.out if status == 0 else out.out + out.err


def test_the_text_tells_plan_refusal_rebuild_and_answer_in_order(
    told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "conversation", CHAT, url=told)
    assert out.startswith(f"{CHAT} of tenant acme: 7 answers, no divergence of the four parties")
    third = out[out.index("turn 3") : out.index("turn 4")]
    places = [third.index(word) for word in ("rebuild, because", "refused", "tokens rebuilt", "agree")]
    assert places == sorted(places)


def test_a_failed_attempt_and_a_failed_turn_are_told(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "conversation", OTHER, url=told)
    assert "attempt 1 failed: the KV load failed verification" in out
    assert "  failed  " in out


def test_the_json_has_the_rows_of_every_view(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "conversation", CHAT, "--format", "json", url=told))
    assert [turn["turn_number"] for turn in found["turns"]] == list(range(1, 8))
    assert {row["label"] for row in found["revisions"]} == {"v12", "v13"}
    assert found["chain_breaks"] == []


def test_the_page_stands_alone_and_shows_each_turn(told: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    arguments = ["audit", "conversation", CHAT, "--format", "html", "--out", str(page)]
    assert main([*arguments, "--database-url", told]) == 0
    links = Links()
    links.feed(page.read_text())
    assert links.found == []
    assert page.read_text().count('<section class="turn">') == 7


def test_a_question_of_ones_own_is_answered_as_a_table_and_as_json(
    told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = """
        SELECT turn_id, decode_engine, first_divergence, completed_at FROM audit.turn_provenance
        WHERE conversation_id LIKE 'conv_0001%' ORDER BY position LIMIT 1
    """
    assert printed(capsys, "sql", query, url=told).splitlines() == [
        "turn_id    decode_engine  first_divergence  completed_at",
        "---------  -------------  ----------------  -------------------",
        "resp_0003  boot_a1        -                 2026-03-02 09:14:02",
        "(1 row)",
    ]
    assert json.loads(printed(capsys, "sql", query, "--format", "jsonl", url=told)) == {
        "turn_id": "resp_0003",
        "decode_engine": "boot_a1",
        "first_divergence": None,
        "completed_at": "2026-03-02T09:14:02.250000+00:00",
    }


def test_every_question_of_the_document_can_be_asked_that_way(
    told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for question in questions():
        monkeypatch.setattr("sys.stdin", io.StringIO(question.query))
        rows = printed(capsys, "sql", "-", url=told).splitlines()[-1]
        assert rows == question.result.splitlines()[-1], question.question


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT content FROM event_contents", "permission denied for table event_contents"),
        ("CREATE TABLE t (n int)", "PostgreSQL does not answer that: "),
        ("SELECT nonsense", 'PostgreSQL does not answer that: column "nonsense" does not exist'),
        ("SET timezone = 'UTC'", "that gives no rows: ask with a SELECT"),
        ("", "that gives no rows: ask with a SELECT"),
        ("SELECT 1; SELECT 2", "that is more than one statement: ask one at a time"),
        ("SELECT * FROM events", "an auditor reads the views of schema audit"),
    ],
)
def test_what_an_auditor_may_not_ask_is_refused_in_one_line(
    told: str, capsys: pytest.CaptureFixture[str], query: str, words: str
) -> None:
    [line] = printed(capsys, "sql", query, url=told, status=1).splitlines()
    assert line.startswith("everturn: ")
    assert words in line


def test_words_of_the_record_are_no_markup() -> None:
    turn = {
        "turn_id": "<script>",
        "turn_number": 1,
        "tenant_id": "<b>",
        "state": "running",
        "revision": None,
        "started_at": "now",
        "failure_message": None,
    }
    views = ("decisions", "refusals", "rebuild_cost", "attempts", "turn_provenance", "revisions", "forks")
    found = {"turns": [turn], "chain_breaks": [], "forked_into": []} | {view: [] for view in views}
    page = conversation_report.html("conv_1", found)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_an_unknown_conversation_is_named(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "conv_x" in printed(capsys, "conversation", "conv_x", url=told, status=1)


def test_an_edit_by_a_superuser_shows_in_the_report_and_in_verify(
    postgres_server: EmbeddedPostgres,
    template_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with told_database(postgres_server, template_database) as url:
        key, kept = str(tmp_path / "audit.key"), str(tmp_path / "heads")
        assert "signed" in printed(capsys, "checkpoint", kept, "--key", key, url=url)
        assert "no broken chains" in printed(capsys, "verify", "--key", key, "--checkpoint", kept, url=url)
        engine = make_engine(url, application_name="audit", role=None)
        with engine.begin() as conn:
            conn.execute(text("ALTER TABLE events DISABLE TRIGGER append_only"))
            conn.execute(
                text("UPDATE events SET occurred_at = now() WHERE stream = :chat AND stream_version = 5"),
                {"chat": CHAT},
            )
        engine.dispose()
        assert CHAT in printed(capsys, "verify", "--key", key, url=url, status=1)
        assert "event 5 breaks the chain" in printed(capsys, "conversation", CHAT, url=url)
