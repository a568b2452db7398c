"""What the deployment gives to those that it starts."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stack.deployment import Deployment, EngineSpec
from stack.ports import find_free_port
from stack.progress import Progress
from workers.child import Child, Program


class Started:
    def wait_ready(self, _ready: Callable[[], bool], *, timeout_s: float) -> None:
        pass


def test_engines_are_given_the_key_for_engines_and_not_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Sequence[str]] = []

    def child(_self: Deployment, _name: str, arguments: Sequence[str], *, stop_s: float) -> Started:
        assert stop_s > 0
        given.append(arguments)
        return Started()

    monkeypatch.setattr(Deployment, "_child", child)
    deployment = Deployment(tmp_path, port=1, progress=Progress(stream=sys.stdout), environment={})
    deployment.start_engine(EngineSpec(name="a", model=tmp_path, port=find_free_port(), cores="0"))
    [arguments] = given
    key_file = arguments[arguments.index("--key-file") + 1]
    assert key_file == str(tmp_path / "run" / "engine.key")


@pytest.mark.parametrize(
    ("set_by_hand", "expected"), [({}, "true"), ({"EVERTURN_CANARY_REQUIRED": "0"}, "0")]
)
def test_engines_must_answer_the_canary_unless_somebody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_hand: dict[str, str], expected: str
) -> None:
    programs: list[Program] = []
    monkeypatch.setattr(Child, "start", programs.append)
    deployment = Deployment(tmp_path, port=1, progress=Progress(stream=sys.stdout), environment=set_by_hand)
    deployment._child("API", ["-m", "service"])
    assert programs[0].env["EVERTURN_CANARY_REQUIRED"] == expected
