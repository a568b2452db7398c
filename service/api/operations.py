"""`/healthz`, `/readyz` and `/metrics`: for those who keep the service running; no key, and no one's words."""

import asyncio
from collections import Counter
from logging import getLogger
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import JSONResponse, Response

from service.api.database import ALL_TENANTS
from service.api.wiring import ServiceOf
from service.domain.plan import EngineState
from service.store import fleet, rebuild_totals, rollout_facts, rollouts, turn_queue
from service.store.waiting import Waiting, waiting_lines

log = getLogger(__name__)
router = APIRouter()

BROKER_PATIENCE_S = 1.0
DATABASE_PATIENCE_S = 5.0
BROKER_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: ServiceOf) -> Response:
    """Ready is who can accept and read turns; without broker or engines they wait, and that is shown."""
    broker = await _reachable(service.settings.broker_url.get_secret_value())
    try:
        engines = await service.database.run(_ready_engines, within_s=DATABASE_PATIENCE_S)
    except (DBAPIError, PoolTimeout) as error:
        reason = f"{type(error).__name__}: not reachable, or not migrated"
        body = {"status": "unready", "database": reason, "broker": broker, "ready_engines": {}}
        return JSONResponse(body, status_code=503)
    return JSONResponse({"status": "ready", "database": "ok", "broker": broker, "ready_engines": engines})


@router.get("/metrics")
async def metrics(service: ServiceOf) -> Response:
    """Without a database, what this process has counted by itself."""
    try:
        depths, percents, lines, queued, recovered, ended, tokens_per_s = await service.database.run(
            lambda conn: (
                rollout_facts.queue_depths(conn),
                rollouts.percents(conn),
                _lines(conn),
                turn_queue.depths(conn),
                turn_queue.recovered(conn),
                rebuild_totals.count_on(conn, service.metrics.ended),
                rebuild_totals.tokens_per_s(conn),
            ),
            reach=ALL_TENANTS,
            within_s=DATABASE_PATIENCE_S,
        )
    except (DBAPIError, PoolTimeout) as error:
        log.warning("queues and rollouts cannot be counted now: %s", error)
    else:
        service.metrics.show_queues(depths, percents)
        service.metrics.show_waiting(lines)
        service.metrics.show_turns(queued, recovered)
        service.metrics.show_rebuilds(ended, tokens_per_s)
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def _lines(conn: Connection) -> dict[str, list[Waiting]]:
    """As `waiting_lines`, and of the aliases that nobody waits for an empty one: a graph needs its zeros."""
    return {alias.name: [] for alias in fleet.list_aliases(conn)} | waiting_lines(conn)


def _ready_engines(conn: Connection) -> dict[str, Any]:
    """By alias."""
    aliases = fleet.list_aliases(conn)
    live = fleet.live_engines(conn, {alias.revision for alias in aliases})
    ready = {(e.boot, e.revision) for e in live if e.state is EngineState.READY}
    serving = Counter(revision for _, revision in ready)
    return {alias.name: serving[alias.revision] for alias in aliases}


async def _reachable(url: str) -> bool:
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(BROKER_PATIENCE_S):
            if parts.scheme.endswith("+socket") or parts.scheme == "unix":
                _, writer = await asyncio.open_unix_connection(parts.path)
            else:
                port = parts.port or BROKER_PORTS.get(parts.scheme, 6379)
                _, writer = await asyncio.open_connection(parts.hostname or "127.0.0.1", port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True
