"""`everturn up` with a real engine: what it prints is answered, what was said outlives a stop, and it ends when a part of it dies."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from openai import OpenAI
from openai.types.responses import ResponseUsage

from stack.ports import find_free_port, require_free_port
from tests.engines.checkpoints import TinyModel
from tests.readme.test_quickstart import blocks, lines, program, typed
from tests.stack.supervisors import REPOSITORY, Machine, Said, adopting, family, wait_until_ended

pytestmark = pytest.mark.engine

PATIENCE_S = 400.0
"""Of a start on a machine that does much else."""
SCRIPT = ("Par", "is", "!")
ANSWER = "".join(SCRIPT)


@pytest.fixture
def machine(folder: Path, engine_scratch: dict[str, str]) -> Iterator[Machine]:
    model = TinyModel(script=SCRIPT).write(folder / "model")
    machine = Machine(data=folder / "data", model=model, env=engine_scratch, patience_s=PATIENCE_S)
    yield machine
    machine.say("down")
    assert machine.processes() == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """What one start said, and what it started."""

    machine: Machine
    welcome: str
    url: str
    key: str
    processes: list[psutil.Process]

    @classmethod
    def started(cls, machine: Machine, port: int) -> "Up":
        said = machine.up(port=port)
        assert (said.status, said.err) == (0, "")
        beginning = f"Everturn serves on http://127.0.0.1:{port}. Data: {machine.data}."
        welcome = said.out[said.out.index(beginning) :]
        [key] = re.findall(r"^Tenant key, made at the first start: (\S+)$", welcome, re.MULTILINE)
        [pid] = re.findall(
            rf"^everturn \(pid (\d+)\) serves on http://127.0.0.1:{port}; ", machine.say("status").out
        )
        found = family(int(pid))
        assert found[0].cmdline()[-6:] == [
            *("--data", str(machine.data), "--port", str(port), "--model", str(machine.model)),
        ]
        return cls(machine=machine, welcome=welcome, url=f"http://127.0.0.1:{port}", key=key, processes=found)

    @property
    def curl(self) -> str:
        return self.welcome[self.welcome.index("  curl") : self.welcome.index("  from openai")]

    @property
    def snippet(self) -> str:
        return textwrap.dedent(self.welcome[self.welcome.index("  from openai") :])

    @contextmanager
    def client(self) -> Iterator[OpenAI]:
        with OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0) as client:
            yield client

    def ask(self, chat: str, text: str) -> ResponseUsage:
        with self.client() as client:
            answer = client.responses.create(model="production", conversation=chat, input=text)
        assert answer.output_text == ANSWER
        assert answer.usage is not None
        return answer.usage

    def said(self, chat: str) -> list[str]:
        with self.client() as client:
            items = [item.model_dump() for item in client.conversations.items.list(chat, order="asc")]
        return [part["text"] for item in items for part in item["content"]]

    @property
    def engine_port(self) -> int:
        key = json.loads((self.machine.data / "keys.json").read_text())["operator_key"]
        answer = httpx.get(
            f"{self.url}/admin/engines", headers={"authorization": f"Bearer {key}"}, timeout=30
        )
        [address] = [one["address"] for one in answer.json()["data"] if one["state"] == "ready"]
        port = urlsplit(str(address)).port
        assert port is not None
        return port

    @property
    def engine(self) -> psutil.Process:
        """Who listens at its port; what it has forked holds the same socket."""
        port = self.engine_port
        listening = (
            process
            for process in self.processes
            for one in process.net_connections()
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        )
        return min(listening, key=psutil.Process.create_time)


def typed_as_printed(*command: str, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(3 * PATIENCE_S)
def test_what_up_prints_is_answered_goes_on_after_down_and_ends_with_a_killed_engine(
    machine: Machine, folder: Path
) -> None:
    port = find_free_port()
    first = Up.started(machine, port)
    what_it_printed_is_answered(first)
    the_quickstart_runs(first, folder)
    with first.client() as client:
        chat = client.conversations.create().id
    before = first.ask(chat, "Of France?")
    engine_port = first.engine_port
    made = (machine.data / "keys.json").read_bytes()
    assert machine.say("down").out.endswith("stopped\n")
    nothing_is_left(first, port, engine_port)
    with adopting():
        second = Up.started(machine, port)
        assert (second.key, (machine.data / "keys.json").read_bytes()) == (first.key, made)
        after = second.ask(chat, "Of Italy?")
        assert second.said(chat) == ["Of France?", ANSWER, "Of Italy?", ANSWER]
        assert after.input_tokens > before.total_tokens
        it_ends_with_its_engine(second)
    nothing_is_left(second, port)
    assert machine.say("clean").out.endswith(f"deleted {machine.data}\n")
    assert not machine.data.exists()


def what_it_printed_is_answered(up: Up) -> None:
    assert typed_as_printed(sys.executable, "-c", up.snippet) == f"{ANSWER}\n"
    if shutil.which("curl") is not None:
        answer = json.loads(typed_as_printed("sh", "-c", up.curl))
        assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", ANSWER)


def the_quickstart_runs(up: Up, folder: Path) -> None:
    """All that it shows for this very service, in its order."""
    typed_as_printed(sys.executable, "-c", program(up.url, up.key), cwd=folder)
    [line] = (folder / "transcripts.jsonl").read_text().splitlines()
    assert [one["role"] for one in json.loads(line)["messages"]] == ["user", "assistant"] * 3
    [shown] = blocks("json")
    (folder / "transcripts.jsonl").write_text(shown)
    for line in lines("everturn import"):
        typed(line, up.machine.data, folder)
    assert len((folder / "conversations.jsonl").read_text().splitlines()) == 3
    assert typed(lines("everturn chat")[0], up.machine.data, folder).startswith(ANSWER)


def nothing_is_left(up: Up, *ports: int) -> None:
    """But its data."""
    assert len(up.processes) > len(
        ("supervisor", "PostgreSQL", "Valkey", "API", "Celery worker", "KV collector")
    )
    wait_until_ended(up.processes, limit_s=10)
    assert up.machine.processes() == []
    for port in ports:
        require_free_port(port, setting="port")
    assert up.machine.say("status") == Said(status=0, out=f"nothing runs in {up.machine.data}\n", err="")
    assert (up.machine.data / "postgres" / "data").exists()


def it_ends_with_its_engine(up: Up) -> None:
    up.engine.kill()
    assert up.processes[0].wait(timeout=120) == 1
    said = (up.machine.data / "logs" / "stack.log").read_text().splitlines()
    [line] = [line for line in said if line.startswith("everturn: ")]
    assert line.startswith("everturn: engine first has ended (exit 1): ")
    assert "killed by SIGKILL" in line
    assert line.endswith("; everything was stopped, `make up` starts it again")
    assert not (up.machine.data / "run" / "ready.json").exists()
