"""A database in which the history of `tests.audit.history` has happened."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.store.connection import make_engine
from stack.postgres import EmbeddedPostgres
from tests.audit.history import tell
from tests.conftest import copied


@contextmanager
def told_database(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    """Its URL, with a superuser's rights."""
    with copied(server, template) as url:
        engine = make_engine(url, application_name="audit", role=None)
        with engine.begin() as conn:
            tell(conn)
        engine.dispose()
        yield url
