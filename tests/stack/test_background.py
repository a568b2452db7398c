"""What `everturn up` says once all serves."""

import json
import os
import shlex
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

from stack.background import _welcome
from tests.stack.answering import name_a_dead_proxy

READY = {"url": "http://127.0.0.1:7"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "keys.json").write_text(json.dumps({"tenant_key": "sk-1"}))
    return tmp_path


def exported(said: str) -> list[tuple[str, str]]:
    """Name and value of what it says to export."""
    _, _, line = said.partition(" export ")
    return [(name, value) for name, _, value in (word.partition("=") for word in shlex.split(line))]


@pytest.mark.parametrize("spared", ["", "intern, .intern.example"])
def test_where_a_proxy_would_be_asked_it_says_what_to_export(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spared: str
) -> None:
    name_a_dead_proxy(monkeypatch)
    monkeypatch.setenv("NO_PROXY", spared)
    assert not proxy_bypass("127.0.0.1")
    _welcome(data, READY)
    said = exported(capsys.readouterr().out)
    assert [name for name, _ in said] == ["no_proxy", "NO_PROXY"]
    for name, value in said:
        monkeypatch.setenv(name, value)
    assert proxy_bypass("127.0.0.1")
    assert proxy_bypass("intern") == bool(spared)


@pytest.mark.parametrize("proxy", [None, "http://proxy:3128"])
def test_where_none_would_be_asked_it_says_nothing_of_it(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], proxy: str | None
) -> None:
    for name in [name for name in os.environ if name.lower() in ("http_proxy", "all_proxy")]:
        monkeypatch.delenv(name)
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    _welcome(data, READY)
    assert "export" not in capsys.readouterr().out
