"""The scripts that run the suites, and a service whose model answers what the suites ask."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from openai import OpenAI

from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.conftest import copied

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture(scope="session")
def suites() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("suites")


@pytest.fixture(scope="session")
def scripted_stack(
    postgres_server: EmbeddedPostgres, template_database: str, suites: ModuleType
) -> Iterator[Stack]:
    """With the suites' scripted model behind `production`. A turn reads what the engine was asked last: one at a time."""
    with copied(postgres_server, template_database) as database, running_stack(database) as running:
        engine = running.exits.enter_context(suites.suites_engine.ScriptedEngine("suites", running.store))
        running.register(engine)
        running.move_alias(engine)
        yield running


@pytest.fixture
def scripted(scripted_stack: Stack) -> OpenAI:
    return scripted_stack.openai
