"""`everturn chat` against the real API: through a pipe, and on a terminal."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack.cli import main
from tests.api.stack import Stack, eventually
from tests.stack.commands.talking import api, fails, own_api, where
from tests.stack.supervisors import WITH_DEFAULT_SIGINT

__all__ = ["api", "own_api"]

PATIENCE_S = 60.0


def pipe(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def conversation_in(notes: str) -> str:
    return notes.rstrip().rpartition(" ")[2]


def roles(stack: Stack, conversation: str) -> list[str]:
    items = stack.http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    return [item["role"] for item in items]


def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(
    api: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("hello\n\nagain\n", monkeypatch)
    assert main(["chat", *where(api, tmp_path)]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    notes = printed.err.splitlines()
    assert [note.split()[0] for note in notes[:2]] == [api.alias_revision()[:20]] * 2
    assert "kv none: 0 of" in notes[0]
    conversation = conversation_in(printed.err)
    assert roles(api, conversation) == ["user", "assistant"] * 2


def test_it_goes_on_with_a_conversation_and_then_with_a_fork_of_it(
    api: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = api.ask("hello")["conversation"]["id"]
    pipe("here\n/fork\n//there\n/nothing\n/quit\nnever said\n", monkeypatch)
    assert main(["chat", "--conversation", conversation, *where(api, tmp_path)]) == 0
    notes = capsys.readouterr().err
    fork = conversation_in(notes)
    assert "no such command: /nothing" in notes
    assert roles(api, conversation) == ["user", "assistant"] * 2
    assert roles(api, fork) == ["user", "assistant"] * 3
    last = api.http.get(f"/v1/conversations/{fork}/items", params={"limit": "2"}).json()["data"][1]
    assert last["content"][0]["text"] == "/there"


def test_an_upgrade_shows_under_the_answer(
    own_api: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_api.start_engine("a", alias=True)
    conversation = own_api.ask("hello, this is long enough to be rebuilt")["conversation"]["id"]
    own_api.await_artifacts(conversation, 1)
    tokens = own_api.state(conversation).window_tokens
    newer = own_api.start_engine("b", alias=True)
    pipe("again\n", monkeypatch)
    assert main(["chat", "--conversation", conversation, *where(own_api, tmp_path)]) == 0
    waits, note = capsys.readouterr().err.splitlines()[:2]
    assert waits == f"  rebuilding {tokens} tokens on {newer.revision[:20]}"
    assert f"{newer.revision[:20]} (another than before)" in note
    assert "kv rebuilt" in note
    assert "refused: revision_mismatch (weights)" in note


def test_a_stream_that_breaks_is_taken_up_where_it_broke(
    own_api: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = own_api.start_engine("a", alias=True, boot="boot_0")
    own_api.start_engine("a", boot="boot_1")
    engine.faults.die_after = 3
    pipe("hello\n", monkeypatch)
    assert main(["chat", *where(own_api, tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == engine.cold_text(engine.prompts[0]).strip()
    assert "attempt 2 takes over" in printed.err


def test_what_goes_wrong_in_a_pipe_ends_it_in_one_line(
    api: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("hello\n", monkeypatch)
    arguments = ["chat", *where(api, tmp_path)]
    assert "The model 'gpt-99' does not exist." in fails([*arguments, "--model", "gpt-99"], capsys)
    assert (
        fails([*arguments, "--conversation", "conv_none"], capsys)
        == "everturn: No conversation with id 'conv_none'.\n"
    )


def test_without_a_stack_or_a_key_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path)]
    assert "give --base-url" in fails([*data, "chat"], capsys)
    assert "give --key-file" in fails([*data, "chat", "--base-url", "http://127.0.0.1:1"], capsys)
    nowhere = ["--base-url", "http://127.0.0.1:1", "--key-file", str(tmp_path / "nowhere")]
    assert f"--key-file {tmp_path}/nowhere cannot be read: No such file" in fails(
        [*data, "chat", *nowhere], capsys
    )
    (tmp_path / "keys.json").write_text('{"tenant_key": "sk-x"}')
    told = fails([*data, "chat", "--base-url", "http://127.0.0.1:1", "--conversation", "c"], capsys)
    assert told.startswith("everturn: cannot reach http://127.0.0.1:1")


def test_ctrl_c_cancels_the_answer_and_the_next_line_is_answered(own_api: Stack, tmp_path: Path) -> None:
    engine = own_api.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    with terminal(["chat", *where(own_api, tmp_path)]) as (process, seen):
        seen.until("> ")
        seen.type("one")
        eventually(lambda: engine.faults.hold_after is None)
        seen.until(" ")
        process.send_signal(signal.SIGINT)
        seen.until("cancelled")
        engine.faults.release.set()
        seen.type("two")
        seen.until("tokens loaded")
        seen.type("/quit")
        seen.until("to go on")
        assert process.wait(PATIENCE_S) == 0
    conversation = conversation_in(seen.text)
    turns = own_api.state(conversation).turns
    assert [turn.failed.code if turn.failed else "completed" for turn in turns.values()] == [
        "cancelled",
        "completed",
    ]


class Seen:
    """What a terminal shows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._read_to = 0
        self.text = ""

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def until(self, words: str) -> None:
        """Of what was not waited for before."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.text.find(words, self._read_to)) < 0:
            assert time.monotonic() < deadline, f"no {words!r} in {self.text!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.text += os.read(self._descriptor, 4096).decode()
        self._read_to = at + len(words)


@contextmanager
def terminal(arguments: list[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Seen]]:
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [*WITH_DEFAULT_SIGINT, sys.executable, "-m", "stack", *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    try:
        yield process, Seen(outside)
    finally:
        process.kill()
        process.wait()
        os.close(outside)
