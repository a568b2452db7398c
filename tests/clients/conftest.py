"""The service in front of real vLLM, for clients that run in environments of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.api.test_real_engine import register
from tests.conftest import copied
from tests.engines.checkpoints import CALLS_FIRST, TinyModel
from tests.engines.real import EngineHall, RealEngine

SPOKEN = ("It is sunny", " in", " Rome", ".")
CALLED = (
    "<tool_call>",
    '\n{"name": "get_weather", ',
    '"arguments": {"ci',
    'ty":  "Ro',
    'me"}}\n',
    "</tool_call>",
)


@pytest.fixture(scope="session")
def calling_engine(
    engine_hall: EngineHall, tmp_path_factory: pytest.TempPathFactory, kv_store: Path
) -> RealEngine:
    """Of a model that calls a tool that it is given, and speaks where it has none, or its output."""
    model = TinyModel(chat_template=CALLS_FIRST, script=SPOKEN, after_tab=CALLED)
    folder = model.write(tmp_path_factory.mktemp("calling") / "model")
    return engine_hall.shared(folder, kv_store, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="session")
def calling_stack(
    postgres_server: EmbeddedPostgres, template_database: str, calling_engine: RealEngine
) -> Iterator[Stack]:
    with copied(postgres_server, template_database) as database, running_stack(database) as stack:
        stack.move_alias(register(stack, calling_engine))
        yield stack


@pytest.fixture(scope="session")
def keys(calling_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make up` keeps them."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps({"tenant_key": calling_stack.secrets.tenant}))
    return path
