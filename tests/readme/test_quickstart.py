"""docs/quickstart.md, typed as it stands."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from openai._models import construct_type
from openai.types.conversations import ConversationItem

from stack.cli import main
from stack.postgres import EmbeddedPostgres
from stack.transcript_file import Transcript, read_transcripts
from tests.api.stack import Stack, running_stack
from tests.conftest import copied
from tests.stack.test_transcript_messages import OPENAI_ITEMS, TALKED

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def stack(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with copied(postgres_server, template_database) as url, running_stack(url) as running:
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture
def data(stack: Stack, tmp_path: Path) -> Path:
    """As `make up` leaves it behind."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ready.json").write_text(json.dumps({"url": stack.url}))
    (tmp_path / "keys.json").write_text(json.dumps({"tenant_key": stack.secrets.tenant}))
    return tmp_path


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", QUICKSTART, re.DOTALL)
    assert found
    return found


def program(url: str, key: str) -> str:
    """All of its Python, for a service that is at another place."""
    whole = "\n".join(blocks("python"))
    for said, is_here in (("http://127.0.0.1:8000", url), ("…the key that make up printed…", key)):
        assert said in whole
        whole = whole.replace(said, is_here)
    return whole


def lines(command: str) -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if command in line]


def typed(line: str, data: Path, folder: Path) -> str:
    """In a shell that is in that folder, with `everturn` as it is installed."""
    everturn = shlex.join([sys.executable, "-m", "stack", "--data", str(data)])
    done = subprocess.run(
        ["sh", "-c", re.sub(r"\beverturn\b", everturn.replace("\\", r"\\"), line, count=1)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_python_block_runs_after_those_before_it(stack: Stack, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program(stack.url, stack.secrets.tenant)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    [line] = (tmp_path / "transcripts.jsonl").read_text().splitlines()
    assert len(json.loads(line)["messages"]) == 6


def test_its_way_out_of_openais_conversations_takes_all_that_they_have_into_a_file_that_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items as their client reads them; of a model that reasons, calls a tool, cites and refuses."""
    [shown] = [block for block in blocks("python") if "def transcript" in block]
    read = [construct_type(type_=ConversationItem, value=item) for item in OPENAI_ITEMS]
    items = SimpleNamespace(list=lambda *_, **__: iter(read))
    client = SimpleNamespace(conversations=SimpleNamespace(items=items))
    monkeypatch.chdir(tmp_path)
    exec(shown, {"client": client, "chat": SimpleNamespace(id="conv_68f1")})  # noqa: S102 ours
    [line] = read_transcripts(tmp_path / "transcripts.jsonl")
    assert isinstance(line, Transcript)
    assert (line.id, line.messages) == ("conv_68f1", TALKED)
    assert main(["import", "transcripts.jsonl", "--dry-run"]) == 0
    assert "without 'annotations' of 1, 'encrypted_content' of 1, 'phase' of 3" in capsys.readouterr().err


def test_the_transcripts_that_it_shows_are_imported_by_the_lines_that_it_shows(
    stack: Stack, data: Path
) -> None:
    [shown] = blocks("json")
    (data / "transcripts.jsonl").write_text(shown)
    dry, real = lines("everturn import")
    typed(dry, data, data)
    typed(real, data, data)
    made = [json.loads(line) for line in (data / "conversations.jsonl").read_text().splitlines()]
    assert [one["id"] for one in made] == ["thread-1", None, None]
    stack.http.get(f"/v1/conversations/{made[0]['conversation']}").raise_for_status()


def test_the_chat_that_it_shows_answers(stack: Stack, data: Path) -> None:
    piped, by_hand = lines("everturn chat")
    assert typed(piped, data, data).strip()
    assert by_hand == "everturn chat"


def test_the_lines_that_change_are_those_of_its_first_program() -> None:
    [shown] = blocks("diff")
    added = [line.lstrip("+ ").rstrip(",") for line in shown.splitlines() if line.startswith("+")]
    assert len(added) == 3
    first = blocks("python")[0]
    assert all(line in first for line in added)
