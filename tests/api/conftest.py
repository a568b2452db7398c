"""A running API: for each test on a database of its own, or one for those that leave nothing behind."""

from collections.abc import Iterator

import pytest

from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.conftest import copied


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database) as running:
        yield running


@pytest.fixture(scope="session")
def shared_stack(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    """With one engine behind `production`."""
    with copied(postgres_server, template_database) as database, running_stack(database) as running:
        running.start_engine("a", alias=True)
        yield running
