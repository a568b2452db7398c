"""Launchers that are ended with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.ports import find_free_port
from tests.workers.fake_api import FakeApi, serving
from tests.workers.launched import Launched

FAKE_VLLM = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(find_free_port()) as api:
        yield api


@pytest.fixture
def launched(tmp_path: Path, api: FakeApi) -> Iterator[Launched]:
    package = tmp_path / "packages/vllm/entrypoints/openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(FAKE_VLLM.read_text())
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(b"weights")
    (tmp_path / "key").write_text("operator-key\n")
    launched = Launched(folder=tmp_path, port=find_free_port(), api_url=api.url)
    yield launched
    if launched.process is not None:
        launched.process.kill()
        launched.process.communicate()
