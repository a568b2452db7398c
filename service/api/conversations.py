"""`/v1/conversations`, as OpenAI has them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request

from service.api.body import parse, read_object
from service.api.response_object import conversation_object, item_object
from service.api.schemas import ConversationBody, parse_messages
from service.api.wiring import ServiceOf, TenantOf
from service.conversation_flow import create_conversation, find_conversation
from service.domain.errors import InvalidInput
from service.domain.events import ConversationId, OnUpgrade

router = APIRouter()

Limit = Annotated[int, Query(ge=1, le=100)]


@router.post("/v1/conversations")
async def create(request: Request, service: ServiceOf, tenant: TenantOf) -> dict[str, Any]:
    body = parse(ConversationBody, await read_object(request, service.settings.max_body_bytes))
    messages = parse_messages(body.items or [], "items")
    conversation = await service.database.run(
        lambda conn: create_conversation(
            conn,
            tenant=tenant.id,
            alias=body.alias or service.settings.default_alias,
            on_upgrade=OnUpgrade(body.on_upgrade) if body.on_upgrade else None,
            metadata=body.metadata or {},
            messages=messages,
            now=service.clock(),
            new_id=service.new_id,
        )
    )
    return await _read(service, tenant, conversation)


@router.get("/v1/conversations/{conversation_id}")
async def read(conversation_id: str, service: ServiceOf, tenant: TenantOf) -> dict[str, Any]:
    return await _read(service, tenant, ConversationId(conversation_id))


@router.get("/v1/conversations/{conversation_id}/items")
async def items(
    conversation_id: str,
    service: ServiceOf,
    tenant: TenantOf,
    *,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    stored = await service.database.run(
        lambda conn: find_conversation(conn, tenant.id, ConversationId(conversation_id))
    )
    ordered = stored.state.items if order == "asc" else stored.state.items[::-1]
    start = 0
    if after is not None:
        start = next((n for n, item in enumerate(ordered, 1) if item.id == after), 0)
        if start == 0:
            raise InvalidInput(f"'after' names no item of this conversation: '{after}'.", "after")
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": [item_object(item) for item in page],
        "has_more": start + limit < len(ordered),
        "first_id": page[0].id if page else "",
        "last_id": page[-1].id if page else "",
    }


async def _read(service: ServiceOf, tenant: TenantOf, conversation: ConversationId) -> dict[str, Any]:
    return conversation_object(
        await service.database.run(lambda conn: find_conversation(conn, tenant.id, conversation))
    )
