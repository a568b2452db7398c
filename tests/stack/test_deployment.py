"""What the deployment gives to those that it starts."""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stack.deployment import Deployment, EngineSpec
from stack.errors import StackError
from stack.placement import LONGEST_SOCKET_PATH
from stack.ports import find_free_port
from stack.postgres import EmbeddedPostgres
from stack.progress import Progress
from tests.stack.answering import answering, name_a_dead_proxy
from workers.child import Child, Program


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Deployment]:
    """One whose API answers."""
    (tmp_path / "keys.json").write_text(json.dumps({"tenant_key": "sk", "operator_key": "op"}))
    with answering({"data": []}) as port:
        yield Deployment(tmp_path, port=port, progress=Progress(stream=sys.stdout), environment={})


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


def test_what_is_on_this_machine_is_not_asked_through_a_proxy(
    served: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_a_dead_proxy(monkeypatch)
    assert served._answers()
    assert served.admin("GET", "/aliases") == {"data": []}


def test_the_zygote_has_a_socket_however_deep_the_data_lie(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[Path] = []

    def child(_self: Deployment, _name: str, arguments: Sequence[str]) -> Started:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(arguments[-1])
        bound.append(Path(arguments[-1]))
        return Started()

    def refuse(_self: EmbeddedPostgres) -> NoReturn:
        raise StackError("so far and no further")

    monkeypatch.setattr(Deployment, "_child", child)
    monkeypatch.setattr(EmbeddedPostgres, "start", refuse)
    data = folder / ("d" * LONGEST_SOCKET_PATH)
    deployment = Deployment(data, port=find_free_port(), progress=Progress(stream=sys.stdout), environment={})
    with pytest.raises(StackError, match="so far"):
        deployment.__enter__()
    assert bound == [deployment.zygote]
    assert not deployment.zygote.parent.exists()


def test_data_on_a_file_system_without_hard_links_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> NoReturn:
        raise StackError(f"{folder} has none")

    def start(*_: object) -> NoReturn:
        raise StackError("something was started")

    monkeypatch.setattr("stack.deployment.require_links", refuse)
    monkeypatch.setattr(Deployment, "_child", start)
    deployment = Deployment(
        tmp_path, port=find_free_port(), progress=Progress(stream=sys.stdout), environment={}
    )
    with pytest.raises(StackError, match="/kv has none"):
        deployment.__enter__()
