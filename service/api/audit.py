"""`/admin/audit`: the audit views as JSON, read under the auditor's own role; for an auditor's or an operator's key."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from service.api.wiring import Auditor, ServiceOf
from service.store import audit

router = APIRouter(prefix="/admin/audit")

Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("")
async def list_views(_: Auditor) -> dict[str, Any]:
    return {"data": [{"view": name, "filters": view.filters} for name, view in audit.VIEWS.items()]}


@router.get("/conversations/{conversation_id}")
async def read_conversation(conversation_id: str, service: ServiceOf, _: Auditor) -> dict[str, Any]:
    """Of every view, what it tells of this conversation."""
    return await service.database.run(lambda conn: audit.read_conversation(conn, conversation_id))


@router.get("/{view}")
async def read_view(
    view: str,
    request: Request,
    service: ServiceOf,
    _: Auditor,
    *,
    limit: Limit = 100,
    after: str | None = None,
) -> dict[str, Any]:
    """Every other parameter of the query filters by the column of that name."""
    filters = {k: v for k, v in request.query_params.items() if k not in ("limit", "after")}
    rows = await service.database.run(
        lambda conn: audit.read_view(conn, view, filters=filters, after=after, limit=limit)
    )
    order = audit.VIEWS[view].order
    return {"data": rows, "next_after": str(rows[-1][order]) if len(rows) == limit else None}
