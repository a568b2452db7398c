"""The databases of the store's tests, for those of the migrations."""

from tests.store.conftest import database, shared_database, template_database

__all__ = ["database", "shared_database", "template_database"]
