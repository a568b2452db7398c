"""`GET /admin/events`: the log in its global order, page by page or as a stream that can be taken up again anywhere.

What was said is not in it: an operator's key reads what happened, and the commitments to the words.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from service.api.wiring import Operator, Service, ServiceOf
from service.store.feed import Cursor, read_lag, read_page, to_json

router = APIRouter(prefix="/admin")

POLL_S = 0.5
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/events")
async def events(
    request: Request, service: ServiceOf, _: Operator, *, after: str | None = None, limit: Limit = 100
) -> Response:
    """With `Accept: text/event-stream`, a stream; `Last-Event-ID` takes it up where it broke off."""
    wants_stream = "text/event-stream" in request.headers.get("accept", "")
    resumed = request.headers.get("last-event-id") if wants_stream else None
    given = resumed or after
    cursor = Cursor.parse(given) if given else Cursor()
    if wants_stream:
        return StreamingResponse(_stream(service, cursor, limit), media_type="text/event-stream")
    return JSONResponse(await _page(service, cursor, limit))


async def _page(service: Service, after: Cursor, limit: int) -> dict[str, Any]:
    found = await service.database.run(lambda conn: read_page(conn, after=after, limit=limit))
    lag = await service.database.run(read_lag)
    return {
        "data": [to_json(event) for event in found],
        "next": str(found[-1].cursor if found else after),
        "lag": {"waiting": lag.waiting, "seconds": round(lag.seconds, 3)},
    }


async def _stream(service: Service, cursor: Cursor, limit: int) -> AsyncIterator[str]:
    """Ends by itself, for its reader to take up again, before a service that stops would have to wait for it."""
    until = time.monotonic() + service.settings.shutdown_s
    spoke = time.monotonic()
    while time.monotonic() < until:
        page = await _page(service, cursor, limit)
        for event in page["data"]:
            yield f"id: {event['cursor']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"
        cursor = Cursor.parse(page["next"])
        if page["data"] or time.monotonic() - spoke >= service.settings.heartbeat_s:
            spoke = time.monotonic()
            yield f": lag {json.dumps(page['lag'])}\n\n"
        if len(page["data"]) < limit:
            await asyncio.sleep(POLL_S)
