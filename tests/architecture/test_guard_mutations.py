"""The guard is held by tests: whichever of its lines is taken out, at least three of them fail, without any engine at that."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("service", "workers", "stack", "migrations", "tests", "pyproject.toml")
AT_LEAST = 3
PATIENCE_S = 280.0


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the sources, to be broken."""
    folder = tmp_path_factory.mktemp("broken")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def failing(folder: Path, files: tuple[str, ...]) -> set[str]:
    """Names of the tests that fail there; of those that need an engine, none is run."""
    quiet = ("-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not engine")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *files],
        cwd=folder,
        env=dict(os.environ) | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert " passed" in done.stdout
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One that keeps KV of another revision out, what stands there without it, and whose tests hold it."""

    source: str
    line: str
    instead: str
    held_by: tuple[str, ...]


GUARD = {
    "scheduler side": Line(
        source="service/domain/artifact.py",
        line="if manifest.revision == own.digest:",
        instead="if True:",
        held_by=("tests/domain/test_artifact.py", "tests/cases/test_identities_apart.py"),
    ),
    "worker side": Line(
        source="workers/kv_connector/loading.py",
        line="if job.revision == own.digest and waiver is None:",
        instead="if waiver is None:",
        held_by=("tests/workers/kv_connector/test_copies.py",),
    ),
    "middleware": Line(
        source="workers/kv_connector/middleware.py",
        line='if wanted is not None and wanted != identity["revision"]:',
        instead="if False:",
        held_by=("tests/workers/kv_connector/test_front.py",),
    ),
}


@pytest.fixture(scope="module")
def sound(copy: Path) -> Path:
    """Where all of these tests pass, so that what fails then fails by the line."""
    assert failing(copy, tuple(file for line in GUARD.values() for file in line.held_by)) == set()
    return copy


@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", GUARD.values(), ids=GUARD)
def test_a_guard_without_its_comparison_fails_at_least_three_tests(sound: Path, line: Line) -> None:
    path = sound / line.source
    whole = path.read_text()
    assert whole.count(line.line) == 1
    path.write_text(whole.replace(line.line, line.instead))
    try:
        assert len(failing(sound, line.held_by)) >= AT_LEAST
    finally:
        path.write_text(whole)
