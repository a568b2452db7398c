"""`/admin/rebuilds`: the queue of record, for operators: listed, read, cancelled, tried again."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from service import rebuild_flow
from service.api.body import StrictBody, parse, read_object
from service.api.wiring import Operator, ServiceOf
from service.domain.errors import NotFound
from service.domain.plan import RebuildQueue
from service.store import rebuild_listing, rebuilds
from service.store.rebuilds import Rebuild, RebuildState

router = APIRouter(prefix="/admin/rebuilds")

Limit = Annotated[int, Query(ge=1, le=1000)]


class ByBody(StrictBody):
    by: str | None = None


@router.get("")
async def list_rebuilds(
    service: ServiceOf,
    _: Operator,
    *,
    state: RebuildState | None = None,
    queue: RebuildQueue | None = None,
    rollout: str | None = None,
    limit: Limit = 50,
) -> dict[str, Any]:
    """The newest first."""
    found = await service.database.run(
        lambda conn: rebuild_listing.list_newest(conn, state=state, queue=queue, rollout=rollout, limit=limit)
    )
    return {"data": [_object(one) for one in found]}


@router.get("/{rebuild_id}")
async def read(rebuild_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    found = await service.database.run(lambda conn: rebuilds.find(conn, rebuild_id))
    if found is None:
        raise NotFound("rebuild", rebuild_id)
    return _object(found)


@router.post("/{rebuild_id}/cancel")
async def cancel(
    rebuild_id: str, request: Request, service: ServiceOf, principal: Operator
) -> dict[str, Any]:
    body = parse(ByBody, await read_object(request, service.settings.max_body_bytes))
    by = body.by or principal.key_id
    return _object(await service.database.run(lambda conn: rebuild_flow.cancel(conn, rebuild_id, by=by)))


@router.post("/{rebuild_id}/retry")
async def retry(rebuild_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """Rung for by the sweeper, a few seconds later."""
    return _object(await service.database.run(lambda conn: rebuild_flow.retry(conn, rebuild_id)))


def _object(found: Rebuild) -> dict[str, Any]:
    times = {
        name: value.isoformat() if (value := getattr(found, name)) else None
        for name in ("created_at", "started_at", "finished_at")
    }
    return asdict(found) | times
