"""The same stores, brokers, engines and workers as the workers' own tests, to be broken."""

from tests.workers.conftest import broker, new_worker, prefiller, store, worker

__all__ = ["broker", "new_worker", "prefiller", "store", "worker"]
