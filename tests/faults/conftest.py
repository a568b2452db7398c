"""The same stores, brokers, engines and workers as the workers' own tests, to be broken."""

from tests.store.conftest import database, template_database
from tests.workers.conftest import broker, new_worker, prefiller, store, worker

__all__ = ["broker", "database", "new_worker", "prefiller", "store", "template_database", "worker"]
