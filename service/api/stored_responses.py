"""`/v1/responses/{id}`: responses read back, streamed again, cancelled and deleted."""

from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.api.asked import NOT_OF_CANCELLATIONS, if_match, refuse_headers
from service.api.paging import Limit, check_include, page_of
from service.api.response_object import list_object, response_object
from service.api.responses import load, stream_of
from service.api.why_waiting import why_waiting
from service.api.wiring import ServiceOf, TenantOf
from service.conversation_flow import find_input
from service.domain.errors import InvalidInput
from service.domain.events import TurnId
from service.domain.turn import TurnState
from service.edit_flow import delete_response

router = APIRouter(prefix="/v1/responses/{response_id}")


@router.get("")
async def read(response_id: str, request: Request, service: ServiceOf, tenant: TenantOf) -> Response:
    check_include(request)
    _check_obfuscation(request)
    after = _starting_after(request)
    turn = TurnId(response_id)
    stored = await load(service, tenant.id, turn)
    if not _flag(request, "stream"):
        shown = response_object(stored)
        if stored.turn.state is TurnState.STARTED:
            why = await why_waiting(service.database, service.line, tenant.id, turn)
            shown["kv"]["reason"] = why or shown["kv"]["reason"]
        return JSONResponse(shown)
    return await stream_of(service, tenant.id, turn, service.runner.watch(tenant.id, turn), after=after)


@router.delete("")
async def delete(response_id: str, request: Request, service: ServiceOf, tenant: TenantOf) -> dict[str, Any]:
    seen = if_match(request)
    await service.database.run(
        lambda conn: delete_response(conn, tenant.id, TurnId(response_id), service.clock(), seen=seen)
    )
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/cancel")
async def cancel(response_id: str, request: Request, service: ServiceOf, tenant: TenantOf) -> dict[str, Any]:
    """One that has ended is left as it is, and shown."""
    refuse_headers(request, NOT_OF_CANCELLATIONS)
    turn = TurnId(response_id)
    stored = await load(service, tenant.id, turn)
    if stored.turn.state in (TurnState.STARTED, TurnState.PINNED):
        await service.runner.cancel(tenant.id, stored.conversation, turn)
        stored = await load(service, tenant.id, turn)
    return response_object(stored)


@router.get("/input_items")
async def input_items(
    response_id: str,
    request: Request,
    service: ServiceOf,
    tenant: TenantOf,
    *,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    check_include(request)
    given = await service.database.run(lambda conn: find_input(conn, tenant.id, TurnId(response_id)))
    page, has_more = page_of(given, limit=limit, order=order, after=after)
    return list_object(page, has_more=has_more)


def _check_obfuscation(request: Request) -> None:
    if _flag(request, "include_obfuscation"):
        raise InvalidInput(
            "Unsupported parameter: 'include_obfuscation': nothing is added to the events of a stream.",
            "include_obfuscation",
            "unsupported_parameter",
        )


def _starting_after(request: Request) -> int | None:
    given = request.query_params.get("starting_after")
    if given is None:
        return None
    if not _flag(request, "stream"):
        raise InvalidInput("'starting_after' needs 'stream=true'.", "starting_after")
    if not (given.isascii() and given.isdigit()):
        raise InvalidInput("'starting_after' must be the sequence number of an event.", "starting_after")
    return int(given)


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false")
    if given not in {"true", "false"}:
        raise InvalidInput(f"'{name}' must be true or false.", name)
    return given == "true"
