"""Runs one turn that waits for a worker: claims its row, and does with it what the API does with one of its own."""

import asyncio
import logging
import os
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from service.api.database import Database, Reach, reach_for
from service.api.metrics import Metrics
from service.api.turn_job import Tools
from service.api.turn_runner import TurnRunner
from service.domain.errors import Unavailable
from service.domain.events import TurnId
from service.engine.engine_http import EngineHttp
from service.store import turn_queue
from service.store.connection import make_async_engine
from service.store.new_ids import new_id
from service.store.turn_queue import Claimed
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild

log = logging.getLogger(__name__)

CONNECTIONS = 4
"""One for the work, one for what keeps it this process's."""


def run_turn(process: PoolProcess, turn: str) -> None:
    """Returns at once if the turn is another's or has ended; else when it has ended, or is another's."""
    owner = new_id("worker_")
    with process.database.begin() as conn:
        claimed = turn_queue.claim(
            conn, turn=TurnId(turn), owner=owner, lease_s=process.settings.turn_lease_s
        )
    if claimed is None:
        log.info("turn %s does not wait for a worker: nothing to do", turn)
        return
    log.info("turn %s, claim %d", turn, claimed.claim)
    asyncio.run(_finish(process, claimed, owner))


async def _finish(process: PoolProcess, claimed: Claimed, owner: str) -> None:
    reach_for(Reach(tenant=claimed.tenant))
    settings = process.settings
    database = Database(
        make_async_engine(
            settings.database_url.get_secret_value(),
            application_name=f"everturn-turn-{os.getpid()}",
            pool_size=CONNECTIONS,
        )
    )

    try:
        async with EngineHttp(silence_s=settings.engine_silence_s) as http:
            runner = TurnRunner(
                Tools(
                    database=database,
                    http=http,
                    ring=lambda name, _: rebuild_here(process, name),
                    settings=settings,
                    metrics=Metrics(),
                    owner=owner,
                    clock=lambda: datetime.now(UTC),
                    new_id=new_id,
                )
            )
            try:
                await runner.finish(claimed)
            finally:
                await runner.close()
    finally:
        await database.close()


def rebuild_here(process: PoolProcess, name: str) -> None:
    """And now: all other processes of the pool may be waiting for rebuilds too.

    Raises:
        Unavailable: the database was away; the sweeper rings for it.
    """
    try:
        run_rebuild(process, name)
    except SQLAlchemyError as error:
        raise Unavailable(f"Rebuild {name} could not be run here: {error}") from error
