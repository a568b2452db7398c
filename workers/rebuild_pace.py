"""Keeps a warm-up to its rollout's pace: what was prefilled quicker than that is rested for, by whoever nobody waits for."""

import logging
import time

from sqlalchemy.exc import SQLAlchemyError

from service import rebuild_run_flow
from service.store.rebuilds import Claim
from workers.pool_process import PoolProcess

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""Whether a turn has come to wait for it, or for another."""


def rested(process: PoolProcess, claim: Claim, until: float) -> Claim | None:
    """It as it is wanted once the monotonic clock is at `until`, or once a turn waits for it; None where it has given way.

    Raises:
        FenceLost: nobody wants it any more, or another has it.
    """
    while claim.rollout is not None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_EVERY_S))
        try:
            with process.database.begin() as conn:
                held = rebuild_run_flow.go_on(conn, claim)
        except SQLAlchemyError as error:
            # Nothing is lost by resting on; whoever records the next chunk will see.
            log.warning("rebuild %s could not be looked at: %s", claim.rebuild, error)
            continue
        if held is None:
            return None
        claim = held
    return claim
