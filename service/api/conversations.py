"""`/v1/conversations`, as OpenAI has them."""

from collections.abc import Collection
from typing import Any, Literal

from fastapi import APIRouter
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import JSONResponse

from service import edit_flow
from service.api.asked import (
    NOT_OF_NEW_CONVERSATIONS,
    NOT_OF_UPDATES,
    Asked,
    idempotency_key,
    if_match,
    is_repeat,
    refuse_headers,
)
from service.api.body import parse, read_object
from service.api.items import parse_items
from service.api.paging import Limit, check_include, page_of
from service.api.response_object import conversation_object, item_object, list_object
from service.api.schemas import (
    ConversationBody,
    ConversationUpdateBody,
    ForkBody,
    ItemsBody,
    named_conversation,
    request_hash,
)
from service.api.wiring import Service, ServiceOf, Tenant, TenantOf
from service.conversation_flow import create_conversation, find_conversation, fork_conversation
from service.domain import decide, own_keys
from service.domain.errors import InvalidInput
from service.domain.events import ConversationId, ItemId, TurnId
from service.domain.new_items import NewId
from service.edit_flow import Edit, Sent
from service.fork_flow import ForkPoint
from service.opening_flow import open_once

router = APIRouter(prefix="/v1/conversations")


@router.post("")
async def create(request: Request, service: ServiceOf, tenant: TenantOf) -> JSONResponse:
    """With an `Idempotency-Key`, once: repeated, it is answered with the conversation that is there."""
    limit = service.settings.max_body_bytes
    document = await read_object(request, limit, tenant.limits, may_be_absent=True)
    body = parse(ConversationBody, document)
    messages = parse_items(body.items or [], "items")
    refuse_headers(request, NOT_OF_NEW_CONVERSATIONS)
    asked = Asked.by(request, request_hash(document))
    key, own = asked.idempotency_key, own_keys.conversation_policy(body.metadata or {})
    # The most explicit wins, as with a response.
    policy = own_keys.policy_of(body.on_upgrade or asked.on_upgrade) or own

    def made(conn: Connection, new_id: NewId) -> ConversationId:
        if body.fork_of is None:
            return create_conversation(
                conn,
                tenant=tenant.id,
                alias=body.alias or service.settings.default_alias,
                on_upgrade=policy,
                metadata=body.metadata or {},
                messages=messages,
                limits=tenant.limits,
                now=service.clock(),
                new_id=new_id,
            )
        return fork_conversation(
            conn,
            tenant=tenant.id,
            point=_fork_point(body.fork_of),
            alias=body.alias,
            on_upgrade=policy,
            metadata=body.metadata,
            messages=messages,
            limits=tenant.limits,
            now=service.clock(),
            new_id=new_id,
        )

    def made_once(conn: Connection) -> ConversationId:
        if key is None:
            return made(conn, service.new_id)
        return open_once(
            conn,
            tenant.id,
            key=key,
            request_hash=asked.request_hash,
            make=lambda id_: made(conn, lambda prefix: id_ if prefix == "conv_" else service.new_id(prefix)),
        )

    conversation = await service.database.run(made_once)
    return await _read(service, tenant, conversation)


@router.get("/{conversation_id}")
async def read(conversation_id: str, service: ServiceOf, tenant: TenantOf) -> JSONResponse:
    return await _read(service, tenant, named_conversation(conversation_id))


@router.post("/{conversation_id}")
async def update(
    conversation_id: str, request: Request, service: ServiceOf, tenant: TenantOf
) -> JSONResponse:
    body = parse(
        ConversationUpdateBody, await read_object(request, service.settings.max_body_bytes, tenant.limits)
    )
    refuse_headers(request, NOT_OF_UPDATES)
    metadata = body.metadata or {}
    policy = own_keys.conversation_policy(metadata)
    edit = _edit(request, service, tenant, conversation_id)
    await service.database.run(lambda conn: edit_flow.update_conversation(conn, edit, metadata, policy))
    return await _read(service, tenant, edit.conversation)


@router.delete("/{conversation_id}")
async def delete(
    conversation_id: str, request: Request, service: ServiceOf, tenant: TenantOf
) -> dict[str, Any]:
    edit = _edit(request, service, tenant, conversation_id)
    await service.database.run(lambda conn: edit_flow.delete_conversation(conn, edit))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation_id}/items")
async def items(
    conversation_id: str,
    request: Request,
    service: ServiceOf,
    tenant: TenantOf,
    *,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    check_include(request)
    stored = await service.database.run(
        lambda conn: find_conversation(conn, tenant.id, named_conversation(conversation_id))
    )
    page, has_more = page_of(stored.state.items, limit=limit, order=order, after=after)
    return list_object(page, has_more=has_more)


@router.post("/{conversation_id}/items")
async def add_items(
    conversation_id: str,
    request: Request,
    service: ServiceOf,
    tenant: TenantOf,
) -> dict[str, Any]:
    """With an `Idempotency-Key`, once; and once where OpenAI's client repeats it by itself."""
    check_include(request)
    document = await read_object(request, service.settings.max_body_bytes, tenant.limits)
    body = parse(ItemsBody, document)
    brought = parse_items(body.items, "items")
    edit = _edit(request, service, tenant, conversation_id)
    key = idempotency_key(request)
    sent = Sent(key=key, request_hash=request_hash(document), repeated=key is None and is_repeat(request))
    if given := {item["id"] for item in body.items if isinstance(item.get("id"), str)}:
        await _check_absent(service, tenant, edit.conversation, given)
    added = await service.database.run(
        lambda conn: edit_flow.add_items_once(conn, edit, brought, sent, service.new_id)
    )
    return list_object(added, has_more=False)


@router.get("/{conversation_id}/items/{item_id}")
async def read_item(
    conversation_id: str,
    item_id: str,
    request: Request,
    service: ServiceOf,
    tenant: TenantOf,
) -> dict[str, Any]:
    check_include(request)
    stored = await service.database.run(
        lambda conn: find_conversation(conn, tenant.id, named_conversation(conversation_id))
    )
    return item_object(decide.find_item(stored.state, ItemId(item_id)))


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: str, item_id: str, request: Request, service: ServiceOf, tenant: TenantOf
) -> JSONResponse:
    edit = _edit(request, service, tenant, conversation_id)
    await service.database.run(lambda conn: edit_flow.delete_item(conn, edit, ItemId(item_id)))
    return await _read(service, tenant, edit.conversation)


def _fork_point(body: ForkBody) -> ForkPoint:
    return ForkPoint(
        conversation=ConversationId(body.conversation),
        after=None if body.after_response is None else TurnId(body.after_response),
    )


def _edit(request: Request, service: Service, tenant: Tenant, conversation: str) -> Edit:
    return Edit(
        tenant=tenant.id,
        conversation=named_conversation(conversation),
        head=if_match(request),
        now=service.clock(),
        limits=tenant.limits,
    )


async def _check_absent(
    service: Service, tenant: Tenant, conversation: ConversationId, items: Collection[str]
) -> None:
    """Raises: InvalidInput: one of them is there already."""
    stored = await service.database.run(lambda conn: find_conversation(conn, tenant.id, conversation))
    for item in stored.state.items:
        if item.id in items:
            raise InvalidInput(
                f"Item already in conversation: '{item.id}'.", "items", "item_already_in_conversation"
            )


async def _read(service: ServiceOf, tenant: TenantOf, conversation: ConversationId) -> JSONResponse:
    stored = await service.database.run(lambda conn: find_conversation(conn, tenant.id, conversation))
    return JSONResponse(conversation_object(stored), headers={"etag": f'"{stored.state.version}"'})
