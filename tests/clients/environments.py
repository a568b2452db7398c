"""Environments of clients that the service itself does not need, as scripts/clients.sh makes them and keeps them for the next run."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 400.0


@cache
def python_of(name: str) -> Path | str:
    """Its interpreter, or why pip cannot fill it."""
    done = subprocess.run(
        ["scripts/clients.sh", "install", name],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
    )
    told = done.stderr.strip().splitlines()
    if done.returncode:
        return told[-1] if told else f"scripts/clients.sh install {name} ends with {done.returncode}"
    return ROOT / ".everturn" / name / "bin" / "python"


def run_in(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Without what this process's environment would have the clients do. Skips the test where there is no such environment."""
    python = python_of(name)
    if isinstance(python, str):
        pytest.skip(f"the clients' environment '{name}' cannot be made here: {python}")
    return subprocess.run(
        [str(python), "-X", "utf8", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
