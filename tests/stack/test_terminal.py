"""Commands on a terminal of another character set than UTF-8: what it cannot show is replaced, and nothing fails for it."""

import os
import subprocess
import sys

import pytest

from tests.stack.supervisors import REPOSITORY


def said(encoding: str, *command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=dict(os.environ) | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", "{…}".encode()), ("latin-1", rb"{\u2026}"), ("ascii", rb"{\u2026}")]
)
def test_the_command_line_says_what_can_be_shown(encoding: str, shown: bytes) -> None:
    told = said(encoding, "-m", "stack", "import", "--help")
    assert (told.returncode, told.stderr) == (0, b"")
    assert shown in told.stdout


def test_who_chose_what_becomes_of_such_characters_has_it_so() -> None:
    told = said("latin-1:ignore", "-m", "stack", "import", "--help")
    assert (told.returncode, told.stderr) == (0, b"")
    assert b'"metadata": {}' in told.stdout
