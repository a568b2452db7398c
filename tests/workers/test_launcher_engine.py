"""The launcher around a real vLLM, before a real API: registered as measured, drained without a lost word."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from stack.ports import find_free_port
from tests.api.stack import Stack, running_stack
from tests.engines.checkpoints import TinyModel
from tests.workers.celery_worker import until
from tests.workers.launched import REPOSITORY

START_S = 120.0
MANY_TOKENS = 3500
TRIES = 5

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


def launch(stack: Stack, engine_zygote: Path, model: Path, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "key").write_text(stack.secrets.operator)
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
        ],
        cwd=REPOSITORY,
        env=dict(os.environ),
        stderr=subprocess.PIPE,
        text=True,
    )


def engines(stack: Stack) -> list[dict[str, str]]:
    found: list[dict[str, str]] = stack.admin.get("/admin/engines").json()["data"]
    return [e for e in found if e["state"] != "gone"]


def generate(address: str, under_way: threading.Event) -> int:
    """As a turn that no stop token ends early; how many tokens came."""
    body = {
        "token_ids": list(range(10, 50)),
        "sampling_params": {"max_tokens": MANY_TOKENS, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    found = 0
    url = f"{address}/inference/v1/generate"
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as answer:
        for line in answer.raise_for_status().iter_lines():
            if line.startswith("data: {"):
                under_way.set()
                found += len(json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"])
    return found


def begun(pool: ThreadPoolExecutor, address: str) -> Future[int]:
    """A request that runs: on a busy machine one may be over before anybody sees that it had begun."""
    for _ in range(TRIES):
        under_way = threading.Event()
        request = pool.submit(generate, address, under_way)
        assert under_way.wait(60)
        if not request.done():
            return request
    pytest.fail(f"{TRIES} requests were too short to be cut off")


def test_r1_a_running_request_is_answered_before_its_engine_ends(
    stack: Stack, launcher: subprocess.Popen[str]
) -> None:
    """Case R1, SIGTERM."""
    until(lambda: bool(engines(stack)), "the engine registers", START_S)
    (engine,) = engines(stack)
    with ThreadPoolExecutor(1) as pool:
        request = begun(pool, engine["address"])
        launcher.send_signal(signal.SIGTERM)
        until(lambda: not engines(stack) or engines(stack)[0]["state"] == "draining", "the engine drains")
        assert request.result(timeout=60) == MANY_TOKENS
    _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, said
    assert "still running" not in said
    assert engines(stack) == []


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
