"""The demo's history is short, and the story is that a worker rebuilds it."""

import pytest

from demo import __main__ as entry
from service.settings import Settings
from stack.errors import StackError

REBUILT = 256
"""Tokens, as the story ends."""


def test_the_demo_has_a_worker_rebuild_its_short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def stop(*_: object, environment: dict[str, str], **__: object) -> None:
        given.update(environment)
        raise StackError("far enough")

    monkeypatch.setattr("demo.checkpoints.prepare", lambda *_, **__: None)
    monkeypatch.setattr(entry, "_forget_last_run", lambda: None)
    monkeypatch.setattr(entry, "Deployment", stop)
    assert entry.main() == 1
    assert int(given["EVERTURN_REBUILD_MIN_TOKENS"]) <= REBUILT
    assert Settings.model_fields["rebuild_min_tokens"].default > REBUILT, "or it would need no setting"
