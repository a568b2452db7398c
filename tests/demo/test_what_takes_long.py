"""Nobody who watches the demo is left without a word for more than two seconds."""

from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from demo import control
from demo.checkpoints import Checkpoints
from demo.claims import Claims
from demo.story import Story
from stack.deployment import Deployment, Keys
from stack.errors import StackError
from stack.progress import Progress
from workers.zygote_engine import ZygoteEngine


@pytest.fixture
def said() -> StringIO:
    return StringIO()


@pytest.fixture
def deployment(tmp_path: Path, said: StringIO, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """As of one that runs, and answers no call."""
    monkeypatch.setattr(Deployment, "keys", Keys(tenant_key="sk", operator_key="op"))
    monkeypatch.setattr(Deployment, "database_dsn", lambda _: "")
    return Deployment(tmp_path, port=1, progress=Progress(stream=said, quiet_s=0.0), environment={})


@pytest.fixture
def story(deployment: Deployment) -> Story:
    nothing = Checkpoints(v12=deployment.data, v13=deployment.data)
    return Story(deployment, nothing, Claims())


def no_answer(*_: object, **__: object) -> NoReturn:
    raise StackError("no answer")


def test_the_control_engines_start_is_told(
    deployment: Deployment, said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimpleNamespace(stop=lambda: 0)
    monkeypatch.setattr(ZygoteEngine, "start", lambda *_: engine)
    monkeypatch.setattr(control, "_wait", lambda *_: None)
    with control.unguarded_engine(deployment, Path("v13"), []):
        assert "the control engine loads v13 ... done in" in said.getvalue()


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda story: story._turn("conv_1", "Hello"), "chat answers ... failed after"),
        (lambda story: story._published("conv_1", count=2), "the KV of turn 2 is stored ... failed after"),
    ],
)
def test_what_the_story_waits_for_is_told(
    story: Story,
    said: StringIO,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Story], Any],
    told: str,
) -> None:
    monkeypatch.setattr(story, "_post", no_answer)
    monkeypatch.setattr(story, "_artifacts", no_answer)
    with suppress(StackError):
        ask(story)
    assert told in said.getvalue()


def test_the_newest_handle_is_taken_once_there_are_as_many_as_turns(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[dict[str, Any]] = []

    def admin(*_: object) -> dict[str, object]:
        stored.append({"artifact": f"kv_{len(stored) + 1}", "tokens": 32})
        return {"data": list(stored)}

    monkeypatch.setattr(Deployment, "admin", admin)
    assert story._published("conv_1", count=2) == "kv_2"
