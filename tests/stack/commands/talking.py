"""A running API for commands that speak to it, and what they are called with."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack.cli import main
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.conftest import copied

Run = Callable[..., str]


@pytest.fixture(scope="module")
def api(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with copied(postgres_server, template_database) as database, running_stack(database) as running:
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture
def own_api(database: str) -> Iterator[Stack]:
    with running_stack(database) as running:
        yield running


def where(stack: Stack, folder: Path) -> list[str]:
    key = folder / "tenant.key"
    key.write_text(f"{stack.secrets.tenant}\n")
    return ["--base-url", f"{stack.url}/v1", "--key-file", str(key)]


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What it says on its way out."""
    assert main(arguments) == 1
    return capsys.readouterr().err
