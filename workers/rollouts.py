"""Moves rollouts on: each by one step at most, in a transaction of its own, as often as the beat comes by."""

import logging
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from service import rollout_advance_flow
from service.domain.errors import EverturnError, Unavailable
from service.domain.plan import RebuildQueue
from service.domain.rollout_events import RolloutId
from service.store import rollouts
from service.store.new_ids import new_id

log = logging.getLogger(__name__)

Ring = Callable[[str, RebuildQueue], None]


def advance_rollouts(database: Engine, ring: Ring, *, warm_min_tokens: int) -> None:
    """May run anywhere, and twice at once: whoever has a rollout's row moves it.

    Raises:
        SQLAlchemyError: the database cannot be used now.
    """
    with database.begin() as conn:
        active = rollouts.list_active(conn)
    for rollout in active:
        try:
            rung = _step(database, rollout, warm_min_tokens)
        except (EverturnError, DBAPIError) as error:
            log.warning("rollout %s stays where it is: %s", rollout, error)
            continue
        _ring(ring, rung)


def _step(database: Engine, rollout: RolloutId, warm_min_tokens: int) -> list[str]:
    with database.begin() as conn:
        return rollout_advance_flow.advance(
            conn,
            rollout,
            now=rollouts.clock(conn),
            new_id=new_id,
            warm_min_tokens=warm_min_tokens,
        )


def _ring(ring: Ring, rung: list[str]) -> None:
    """After the commit; what is not heard, the sweeper rings for again."""
    for rebuild in rung:
        try:
            ring(rebuild, RebuildQueue.BACKGROUND)
        except Unavailable as error:
            log.warning("%s", error)
            return
