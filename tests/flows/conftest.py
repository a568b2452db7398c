"""The service's own connections to a migrated database."""

from tests.store.conftest import conn, database, engine, shared_database, template_database

__all__ = ["conn", "database", "engine", "shared_database", "template_database"]
