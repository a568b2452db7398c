"""What one process of the worker's pool holds: connections of its own, made after the fork and closed with it."""

import os
import signal
from dataclasses import dataclass
from typing import Self

import httpx
from sqlalchemy import Engine

from service.engine.client import timeouts
from service.engine.engine_http import KEEPALIVE_S
from service.settings import Settings
from service.store.connection import make_engine
from workers import tether

CONNECTIONS = 2
"""One for the work, one for the thread that renews the lease."""
ORPHANED = 1
"""Exit status, which nobody is left to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProcess:
    database: Engine
    http: httpx.Client
    settings: Settings

    @classmethod
    def open(cls, settings: Settings) -> Self:
        return cls(
            database=make_engine(
                settings.database_url.get_secret_value(),
                application_name=f"everturn-worker-{os.getpid()}",
                pool_size=CONNECTIONS,
            ),
            # Engines are told by address; a proxy of the environment has no business between us.
            http=httpx.Client(
                trust_env=False,
                timeout=timeouts(settings.rebuild_timeout_s),
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            ),
            settings=settings,
        )

    def close(self) -> None:
        self.http.close()
        self.database.dispose()


def end_with_parent(parent: int) -> None:
    """A pool process whose worker was killed would finish unseen, or wait for ever.

    Args: parent: the worker's main process; one that was killed before this is called has left this process to another.
    """
    try:
        tether.end_with_parent(parent, signal.SIGKILL)
    except ProcessLookupError:
        # Celery logs what a receiver of its signals raises, and goes on.
        os._exit(ORPHANED)
