"""The service as the bench knows it, in this process."""

from collections.abc import Iterator

import psutil
import pytest

from bench.api_service import BenchService
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.conftest import copied


@pytest.fixture(scope="module")
def stack(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with copied(postgres_server, template_database) as url, running_stack(url) as running:
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture
def service(stack: Stack) -> BenchService:
    return BenchService(
        url=stack.url, tenant_key=stack.secrets.tenant, admin=stack.admin, process=psutil.Process()
    )
