"""`make demo` that cannot go on: one line, and an exit status that is not 0."""

from typing import NoReturn

import httpx
import pytest

from demo import __main__ as entry
from demo.checkpoints import CheckpointError

ASKED = httpx.Request("GET", "http://127.0.0.1:1/health")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CheckpointError("pip could not download it; check the network"), 1, "pip could not download it; "),
        (
            PermissionError(13, "Permission denied", ".everturn"),
            1,
            "cannot use .everturn: Permission denied; make it usable, or choose",
        ),
        (
            OSError(28, "No space left on device", ".everturn/x"),
            1,
            "No space left on device; free some space",
        ),
        (
            httpx.ConnectError("refused", request=ASKED),
            1,
            "GET http://127.0.0.1:1/health failed: refused (logs:",
        ),
        (KeyboardInterrupt(), 130, "interrupted; nothing runs any more"),
    ],
)
def test_what_ends_the_demo_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    line: str,
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("demo.checkpoints.prepare", fail)
    assert entry.main() == status
    said = capsys.readouterr()
    (only,) = said.err.splitlines()
    assert only.startswith("demo: ")
    assert line in only
    assert said.out == ""
