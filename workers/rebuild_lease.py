"""Keeps a worker's claim on a rebuild alive while its engine works."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.store import rebuilds
from service.store.rebuilds import Claim

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 3


@contextmanager
def lease_renewed(database: Engine, claim: Claim, lease_s: float) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=_renew_until, args=(database, claim, lease_s, over.wait), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _renew_until(database: Engine, claim: Claim, lease_s: float, over: Callable[[float], bool]) -> None:
    while not over(lease_s / BEATS_PER_LEASE):
        try:
            with database.begin() as conn:
                held = rebuilds.renew(conn, rebuild=claim.rebuild, fence=claim.fence, lease_s=lease_s)
        except SQLAlchemyError as error:
            log.warning("rebuild %s: the lease could not be renewed: %s", claim.rebuild, error)
            continue
        if not held:
            # A prefill under way cannot be interrupted from here; what comes of it will find the fence gone.
            log.warning("rebuild %s: fence %s is lost", claim.rebuild, claim.fence)
            return
