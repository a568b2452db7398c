"""A running API for each test, on a database of its own."""

from collections.abc import Iterator

import pytest

from tests.api.stack import Stack, running_stack
from tests.store.conftest import database, template_database

__all__ = ["database", "template_database"]


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database) as running:
        yield running
