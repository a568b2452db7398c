"""The launcher around a real vLLM, before a real API: registered as measured, drained without a lost word."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from service.domain.events import TurnCompleted
from service.domain.turn import TurnState
from stack.ports import find_free_port
from tests.api.stack import Stack, deltas, running_stack, sse, until_text
from tests.e2e.fleet import frozen, process_tree, server_of
from tests.e2e.test_engines_come_and_go import LONG_ANSWER, SETTLED_S, equals_cold, join, pins
from tests.engines.checkpoints import TinyModel
from tests.engines.real import RealEngine
from tests.workers.celery_worker import until
from tests.workers.launched import REPOSITORY
from workers.named_memory import FOLDER

START_S = 120.0
TRIES = 30

pytestmark = pytest.mark.engine


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database, engine_lease_s=10) as running:
        yield running


@pytest.fixture
def launcher(
    stack: Stack, engine_zygote: Path, tiny_v12: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    process = launch(stack, engine_zygote, tiny_v12, tmp_path)
    yield process
    process.terminate()
    process.communicate(timeout=60)


def launch(
    stack: Stack, engine_zygote: Path, model: Path, tmp_path: Path, *more: str
) -> subprocess.Popen[str]:
    (tmp_path / "key").write_text(stack.secrets.engine)
    arguments = {
        "--model": model,
        "--served-model-name": "chat",
        "--port": find_free_port(),
        "--api": stack.url,
        "--key-file": tmp_path / "key",
        "--store": tmp_path / "kv",
        "--run-dir": tmp_path / "run",
        "--zygote": engine_zygote,
        "--kv-cache-memory-bytes": 32 << 20,
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "workers.launcher"),
            *(str(part) for pair in arguments.items() for part in pair),
            *more,
        ],
        cwd=REPOSITORY,
        env=dict(os.environ),
        stderr=subprocess.PIPE,
        text=True,
    )


def engines(stack: Stack) -> list[dict[str, str]]:
    found: list[dict[str, str]] = stack.admin.get("/admin/engines").json()["data"]
    return [e for e in found if e["state"] != "gone"]


def launched(stack: Stack) -> dict[str, str]:
    until(lambda: bool(engines(stack)), "the engine registers", START_S)
    (engine,) = engines(stack)
    stack.point(engine["revision"])
    return engine


@contextmanager
def held_in_its_answer(
    stack: Stack, chat: str, engine: dict[str, str]
) -> Iterator[tuple[Iterator[dict[str, Any]], str, Callable[[], None]]]:
    """A stream, what it said already, and what lets the engine go on: it takes no step until then.

    A random answer may be over before that, and is told again.
    """
    body = {"input": "Go on.", "conversation": chat, "stream": True} | LONG_ANSWER
    for _ in range(TRIES):
        with stack.http.stream("POST", "/v1/responses", json=body) as answer, ExitStack() as ice:
            events = sse(answer)
            turn = (live := until_text(events))[0]["response"]["id"]
            ice.enter_context(frozen(engine))
            time.sleep(SETTLED_S)
            if stack.state(chat).turns[turn].state is TurnState.PINNED:
                yield events, deltas(live), ice.close
                return
            ice.close()
            list(events)
    pytest.fail(f"{TRIES} answers were over before their engine could be told to end")


def test_r1_a_turn_that_runs_is_answered_before_its_engine_ends(
    stack: Stack, launcher: subprocess.Popen[str]
) -> None:
    """Case R1, SIGTERM."""
    engine = launched(stack)
    chat = stack.conversation()
    with held_in_its_answer(stack, chat, engine) as (events, said, go_on):
        launcher.send_signal(signal.SIGTERM)
        until(lambda: engines(stack)[0]["state"] == "draining", "the engine drains")
        go_on()
        final = whole(said, list(events))
    assert final["attempt"] == 1
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, errors
    assert "still running" not in errors
    assert engines(stack) == []


def test_r1_a_turn_that_outlasts_the_drain_is_answered_once_by_another_engine_of_its_revision(
    stack: Stack, engine_zygote: Path, tiny_v12: Path, tmp_path: Path, v12_engine: RealEngine
) -> None:
    """Case R1, SIGTERM."""
    soon = ("--drain-timeout", "0.5", "--shutdown-timeout", "0")
    launcher = launch(stack, engine_zygote, tiny_v12, tmp_path, *soon)
    assert launcher.stderr is not None
    try:
        engine = launched(stack)
        chat = stack.conversation()
        with held_in_its_answer(stack, chat, engine) as (events, said, go_on):
            join(stack, v12_engine)
            launcher.send_signal(signal.SIGTERM)
            next(line for line in launcher.stderr if "requests were still running" in line)
            go_on()
            final = whole(said, list(events))
        assert launcher.wait(timeout=60) == 0
    finally:
        launcher.kill()
        launcher.communicate()
    [first, second] = pins(stack, chat)[-2:]
    assert (first.engine, second.engine) == (engine["boot"], v12_engine.boot)
    assert first.revision == second.revision
    assert final["attempt"] == second.attempt == 2
    assert sum(event.turn == second.turn for event in completions(stack, chat)) == 1
    assert equals_cold(stack, chat, v12_engine, temperature=1)


def test_an_engine_that_is_stopped_at_once_leaves_no_shared_memory(
    stack: Stack, engine_zygote: Path, tiny_v12: Path, tmp_path: Path
) -> None:
    """VLLM then kills its own processes, the one that would tidy up after them among them."""
    launcher = launch(stack, engine_zygote, tiny_v12, tmp_path, "--shutdown-timeout", "0")
    try:
        tree = process_tree(server_of(launched(stack)))
        named = {Path(mapped.path) for process in tree for mapped in process.memory_maps()}
        shared = {path for path in named if path.parent == FOLDER and path.exists()}
        assert shared, "vLLM's processes talk through it"
        launcher.terminate()
        _, said = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        launcher.communicate()
    assert launcher.returncode == 0, said
    assert not [path for path in shared if path.exists()]


def whole(said: str, rest: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer, in which each word that was streamed stands once."""
    final: dict[str, Any] = rest[-1]["response"]
    assert final["status"] in ("completed", "incomplete"), final
    assert said + deltas(rest) == final["output"][0]["content"][0]["text"]
    return final


def completions(stack: Stack, chat: str) -> list[TurnCompleted]:
    return [event for event in stack.events(chat) if isinstance(event, TurnCompleted)]


def test_a_checkpoint_that_vllm_cannot_load_ends_in_one_line_and_leaves_nothing(
    stack: Stack, engine_zygote: Path, tmp_path: Path
) -> None:
    """Whole by its files: only loading shows that a tensor is not in them."""
    model = TinyModel().write(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    process = launch(stack, engine_zygote, model, tmp_path)
    try:
        _, said = process.communicate(timeout=START_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1, said
    line = said.splitlines()[-1]
    assert re.fullmatch(r"engine chat on port \d+: .*\S \(log: .*\)", line), said
    assert "Traceback" not in said
    assert stack.admin.get("/admin/engines").json()["data"] == []
    assert not [path for path in (tmp_path / "kv").rglob("*") if path.is_file()]
