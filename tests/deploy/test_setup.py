"""scripts/setup.sh where it cannot go on: one line that says why and what to do, a status that is not 0, and nothing taken for done."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/sh
case "$*" in
  *version_info*) exit {old} ;;
  -V) echo "Python 3.9.2" ;;
  "-m venv .venv") {venv} ;;
  *importlib.metadata*) exit {torch} ;;
  *"install"*) echo "ERROR: No matching distribution"; exit 1 ;;
esac
"""
"""A Python that does what each test is about, without a network."""
MAKES_VENV = "mkdir -p .venv/bin && cp $0 .venv/bin/python"


def said(folder: Path, **stub: object) -> tuple[int, list[str], list[str]]:
    (folder / "scripts").mkdir()
    for name in ("scripts/setup.sh", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    python = folder / "python"
    python.write_text(STUB.format(**{"old": 0, "venv": MAKES_VENV, "torch": 0} | stub))
    python.chmod(0o755)
    done = subprocess.run(
        ["scripts/setup.sh"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not list(folder.glob(".venv/*.stamp"))
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_a_python_of_another_version_is_named_with_the_way_to_name_one(tmp_path: Path) -> None:
    status, _, [line] = said(tmp_path, old=1)
    assert status == 1
    assert line.endswith(
        "is Python 3.9.2; Python 3.11 or 3.12 is needed: name one with PYTHON=/path/to/python3.11"
    )
    assert not (tmp_path / ".venv").exists()


def test_where_no_environment_can_be_made_the_package_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    status, _, [line] = said(tmp_path, venv="mkdir .venv; exit 1")
    assert status == 1
    assert line == "setup: python3 -m venv failed (Debian: apt-get install python3-venv)"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("torch", "what"), [(1, r"torch "), (0, "the locked packages")])
def test_what_pip_cannot_install_is_said_last_and_the_next_run_begins_there(
    tmp_path: Path, torch: int, what: str
) -> None:
    status, out, [line] = said(tmp_path, torch=torch)
    assert status == 1
    assert "ERROR: No matching distribution" in out
    assert line.startswith(f"setup: pip could not install {what}")
    assert line.endswith("and the next run goes on from here")
