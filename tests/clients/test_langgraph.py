"""The quickstart's way out of LangGraph: what a real agent left in its checkpoints goes on here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stack.cli import main
from tests.api.stack import Stack
from tests.clients.environments import ROOT, run_in
from tests.stack.commands.talking import where

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()


def test_threads_of_an_agent_are_imported_from_their_checkpoints(
    calling_stack: Stack, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an agent's name and a person's; a call and its output; as each of OpenAI's two APIs has LangChain keep them."""
    [shown] = re.findall(r"```py\n(.*?)```", QUICKSTART, re.DOTALL)
    (tmp_path / "shown.py").write_text(shown)
    code = str(tmp_path / "shown.py")
    done = run_in("clients", "scripts/clients_langgraph.py", f"{calling_stack.url}/v1", str(keys), code)
    assert done.returncode == 0, done.stderr
    (tmp_path / "transcripts.jsonl").write_text(done.stdout)
    command = ["import", str(tmp_path / "transcripts.jsonl"), *where(calling_stack, tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err.endswith("imported 2 conversations, 8 messages, without 'name' of 3\n")
    for line in printed.out.splitlines():
        made = json.loads(line)
        items = items_of(calling_stack, made["conversation"])
        assert [item["type"] for item in items] == [
            *("message", "function_call", "function_call_output", "message")
        ]
        question, call, output, answer = items
        assert question["content"][0]["text"] == "Weather?"
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Rome"})
        assert (output["call_id"], output["output"]) == (call["call_id"], "sunny in Rome")
        assert answer["content"][0]["text"]
        after = calling_stack.ask("And now?", conversation=made["conversation"], temperature=0)
        assert after["status"] == "completed"


def items_of(stack: Stack, conversation: str) -> list[dict[str, Any]]:
    path = f"/v1/conversations/{conversation}/items"
    listed: list[dict[str, Any]] = stack.http.get(path, params={"order": "asc"}).json()["data"]
    return listed
