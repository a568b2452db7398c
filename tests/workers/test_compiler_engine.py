"""An eager engine on a machine without a C++ compiler answers as elsewhere, and nothing is compiled for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.engines.real import EngineHall, RealEngine
from tests.workers.kv_connector.prompts import prompt
from workers.vllm_command import NOTHING_COMPILED

USED_BY_VLLM = ("sh", "lscpu")
AS_VLLM_COMPILES_ITS_OWN = """
import torch
@torch.compile(backend="inductor")
def greater(x, values):
    return (x >= values).sum(-1)
print(greater(torch.arange(6.0).reshape(2, 3), torch.tensor([[1.0], [5.0]])).tolist())
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of one where neither a compiler is, nor anything that was compiled before."""
    programs, compiled = tmp_path / "bin", tmp_path / "compiled"
    programs.mkdir()
    compiled.mkdir()
    for name in USED_BY_VLLM:
        (programs / name).symlink_to(shutil.which(name) or name)
    return {"PATH": str(programs), "TORCHINDUCTOR_CACHE_DIR": str(compiled)}


@pytest.mark.engine
def test_log_probabilities_are_answered_without_a_compiler(
    engine_hall: EngineHall,
    v12_engine: RealEngine,
    tiny_v12: Path,
    tmp_path: Path,
    machine: dict[str, str],
) -> None:
    """Of an engine that the zygote forks, which imported torch in another environment."""
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", env=machine)
    try:
        here, there = engine.cold(prompt(1)), v12_engine.cold(prompt(1))
        assert here.status == httpx.codes.OK
        assert (here.tokens, here.logprobs) == (there.tokens, there.logprobs)
        assert engine.revision == v12_engine.revision
        assert list(Path(machine["TORCHINDUCTOR_CACHE_DIR"]).iterdir()) == []
    finally:
        engine_hall.stop(engine)


def test_what_an_engine_that_starts_plainly_is_given_keeps_torch_from_compiling(
    machine: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_VLLM_COMPILES_ITS_OWN],
        env=dict(os.environ) | machine | NOTHING_COMPILED,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.stdout, done.returncode) == ("[2, 1]\n", 0), done.stderr
    assert list(Path(machine["TORCHINDUCTOR_CACHE_DIR"]).iterdir()) == []
