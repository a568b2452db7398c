"""A running API: for each test on a database of its own, or one for those that leave nothing behind."""

from collections.abc import Iterator

import pytest

from tests.api.stack import Stack, running_stack


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database) as running:
        yield running


@pytest.fixture(scope="session")
def shared_stack(shared_database: str) -> Iterator[Stack]:
    """With one engine behind `production`."""
    with running_stack(shared_database) as running:
        running.start_engine("a", alias=True)
        yield running
