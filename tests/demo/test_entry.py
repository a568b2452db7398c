"""`make demo` that cannot go on: one line, and an exit status that is not 0."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from demo import __main__ as entry
from demo.checkpoints import CheckpointError
from demo.claims import Claims
from demo.story import Outcome

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


@pytest.mark.parametrize("true", [True, False])
def test_a_claim_that_does_not_hold_is_named_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], true: bool
) -> None:
    class Told:
        def __init__(self, _deployment: object, _checkpoints: object, claims: Claims) -> None:
            self.claims = claims

        def tell(self) -> Outcome:
            self.claims.check("the sky is up", holds=True)
            equal = self.claims.check("equal token for token", holds=true)
            return Outcome(
                cross_revision_hits=0,
                refusals=1,
                differing_fields=["weights"],
                control_differs=True,
                equals_cold_prefill=equal,
                rebuilt_tokens=256,
            )

    monkeypatch.setattr("demo.checkpoints.prepare", lambda *_, **__: None)
    monkeypatch.setattr(entry, "_forget_last_run", lambda: None)
    monkeypatch.setattr(entry, "Deployment", lambda *_, **__: nullcontext())
    monkeypatch.setattr(entry, "Story", Told)
    assert entry.main() == (0 if true else 1)
    said = capsys.readouterr()
    assert said.err == ("" if true else "demo: this did not hold: equal token for token\n")
    assert f"{'✓' if true else '✗'} equal token for token" in said.out
    last = json.loads(said.out.splitlines()[-1])
    assert last.pop("seconds") >= 0
    assert last == {
        "cross_revision_hits": 0,
        "refusals": 1,
        "differing_fields": ["weights"],
        "control_differs": True,
        "equals_cold_prefill": true,
        "rebuilt_tokens": 256,
    }


STORY_OF_ITS_OWN = """
from contextlib import nullcontext
from demo import __main__ as entry
from demo.story import Outcome, Story

class Told(Story):
    def __init__(self, _deployment, _checkpoints, claims):
        self._claims = claims

    def tell(self):
        self._chapter("A client talks: two turns on v12")
        self._claims.check("equal token for token", holds=True)
        return Outcome(cross_revision_hits=0, refusals=1, differing_fields=[], control_differs=True,
                       equals_cold_prefill=True, rebuilt_tokens=256)

entry.checkpoints.prepare = lambda *_, **__: None
entry._forget_last_run = lambda: None
entry.Deployment = lambda *_, **__: nullcontext()
entry.Story = Told
raise SystemExit(entry.main())
"""


@pytest.mark.parametrize(("encoding", "sign", "tick"), [("utf-8", "■", "✓"), ("latin-1", "?", "?")])
def test_the_story_is_told_on_any_terminal(encoding: str, sign: str, tick: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", STORY_OF_ITS_OWN],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ) | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (told.returncode, told.stderr) == (0, b"")
    _, chapter, claim, last = told.stdout.decode(encoding).splitlines()
    assert chapter == f"{sign} A client talks: two turns on v12"
    assert claim == f"   {tick} equal token for token"
    assert json.loads(last)["equals_cold_prefill"] is True
