"""What the README and `make up` tell people to type, typed."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from stack.background import WELCOME
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.conftest import copied
from workers.engine_options import EngineOptions

README = (Path(__file__).parents[2] / "README.md").read_text()
PATIENCE_S = 60.0

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def own_database(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with copied(postgres_server, template_database) as url:
        yield url


@pytest.fixture(scope="module")
def stack(own_database: str) -> Iterator[Stack]:
    with running_stack(own_database) as running:
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture
def welcome(stack: Stack) -> str:
    return WELCOME.format(url=stack.url, data="/data", key=stack.secrets.tenant)


def typed(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_the_table(beginning: str) -> str:
    found = re.search(rf"`({re.escape(beginning)}[^`]*)`", README)
    assert found is not None
    return found[1]


def test_the_readmes_client_gets_an_answer(stack: Stack) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for said, is_here in (
        ("http://127.0.0.1:8000", stack.url),
        ("…the key that make up printed…", stack.secrets.tenant),
    ):
        assert said in snippet
        snippet = snippet.replace(said, is_here)
    assert typed(sys.executable, "-c", snippet).strip()


def test_the_client_that_make_up_prints_gets_an_answer(welcome: str) -> None:
    snippet = textwrap.dedent(welcome[welcome.index("  from openai") :])
    assert typed(sys.executable, "-c", snippet).strip()


def test_it_is_the_same_client_in_both() -> None:
    printed = textwrap.dedent(WELCOME[WELCOME.index("  from openai") :])
    ending = "client.conversations.create()"
    assert printed[printed.index(ending) :].strip() in README


@needs_curl
def test_the_curl_line_that_make_up_prints_gets_an_answer(welcome: str) -> None:
    line = welcome[welcome.index("curl") : welcome.index("from openai")]
    answer = json.loads(typed("sh", "-c", line))
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"]


@needs_curl
def test_the_readmes_curl_lines_answer_stream_and_resume(stack: Stack) -> None:
    [shown] = [block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "curl" in block]
    for said, is_here in (
        ("http://127.0.0.1:8000", stack.url),
        ("…the key that make up printed…", stack.secrets.tenant),
    ):
        assert said in shown
        shown = shown.replace(said, is_here)
    names, turn, stream, resume = shown.splitlines()
    answer = json.loads(typed("sh", "-c", f"{names}\n{turn}"))
    assert answer["status"] == "completed"
    assert "resp_…" in stream
    live = events_of(typed("sh", "-c", f"{names}\n{stream.replace('resp_…', answer['id'])}"))
    assert [event["sequence_number"] for event in live] == list(range(len(live)))
    last = live[-1]["response"]
    assert (last["status"], last["previous_response_id"]) == ("completed", answer["id"])
    assert "resp_…" in resume
    again = events_of(typed("sh", "-c", f"{names}\n{resume.replace('resp_…', last['id'])}"))
    assert again == live[4:]


def events_of(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


@needs_curl
def test_the_line_that_moves_the_fleet_moves_it(stack: Stack) -> None:
    newer = stack.start_engine("b")
    line = in_the_table("curl -X PUT")
    for said, is_here in (
        ("http://127.0.0.1:8000", stack.url),
        ("$(cat .everturn/run/operator.key)", stack.secrets.operator),
        ("rev_…", newer.revision),
    ):
        assert said in line
        line = line.replace(said, is_here)
    answer = json.loads(typed("sh", "-c", f"{line} -s"))
    assert "error" not in answer, answer
    (alias,) = [a for a in stack.admin.get("/admin/aliases").json()["data"] if a["name"] == "production"]
    assert alias["revision"] == newer.revision


def test_the_second_engines_line_is_one_that_the_launcher_takes() -> None:
    _, _, *argv = shlex.split(in_the_table(".venv/bin/python -m workers.launcher"))[1:]
    assert EngineOptions.parse(argv).name == "engine chat on port 8102"


def test_the_question_to_the_record_is_answered(stack: Stack, own_database: str) -> None:
    stack.http.post("/v1/responses", json={"model": "production", "input": "Hello"}).raise_for_status()
    line = next(found for found in README.splitlines() if found.startswith("psql"))
    words = shlex.split(line)
    statements = [words[at + 1] for at, word in enumerate(words) if word == "-c"]
    assert statements
    url = own_database.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        assert cursor.fetchall()


def test_the_login_that_an_auditor_is_given_reads_the_views_and_no_table(own_database: str) -> None:
    making = in_the_table("CREATE ROLE ada")
    url = own_database.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url) as connection:
        connection.execute(making.encode())
        connection.execute("SET ROLE ada")
        connection.execute("SELECT count(*) FROM audit.turn_provenance")
        with pytest.raises(InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM event_contents")
        connection.rollback()
