"""The history that the questions of docs/audit.md are asked of, in a database of its own."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from service.store.connection import make_engine
from stack.postgres import EmbeddedPostgres
from tests.audit.told import told_database


@pytest.fixture(scope="package")
def history(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Connection]:
    with told_database(postgres_server, template_database) as url:
        engine = make_engine(url, application_name="audit", role=None)
        with engine.connect() as conn:
            yield conn
        engine.dispose()
