"""`/admin/keys` and `/admin/tenants`: who may speak for whom, and how much of the service each tenant may use."""

import secrets
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from service import tenant_flow
from service.api.body import StrictBody, parse, read_object
from service.api.schemas import Policy
from service.api.wiring import Operator, ServiceOf
from service.domain.events import OnUpgrade, TenantId
from service.domain.limits import Limits
from service.store import keys, tenants

router = APIRouter(prefix="/admin")

SECRET_BYTES = 32
LONGEST_GRACE_S = 30 * 24 * 3600

Most = Annotated[int, Field(ge=1, le=2**53)] | None


class KeyBody(StrictBody):
    scope: Literal["tenant", "operator", "auditor", "engine"]
    tenant: str | None = None
    label: str | None = Field(default=None, max_length=200)


class RotateBody(StrictBody):
    grace_s: float = Field(default=0, ge=0, le=LONGEST_GRACE_S, strict=False)


class TenantBody(StrictBody):
    on_upgrade: Policy | None = None


class PolicyBody(StrictBody):
    on_upgrade: Policy | None


class LimitsBody(StrictBody):
    request_bytes: Most = None
    items: Most = None
    conversations: Most = None
    concurrent_turns: Most = None
    tokens: Most = None


@router.get("/keys")
async def list_keys(service: ServiceOf, _: Operator, *, tenant: str | None = None) -> dict[str, Any]:
    only = None if tenant is None else TenantId(tenant)
    found = await service.database.run(lambda conn: keys.list_keys(conn, only))
    return {"data": [asdict(key) for key in found]}


@router.post("/keys", status_code=201)
async def create_key(request: Request, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    """The only time that the secret is shown."""
    body = parse(KeyBody, await read_object(request, service.settings.max_body_bytes))
    secret = new_secret()
    key_id = await service.database.run(
        lambda conn: keys.create_key(
            conn,
            tenant=None if body.tenant is None else TenantId(body.tenant),
            scope=keys.Scope(body.scope),
            secret=secret,
            now=service.clock(),
            by=principal.key_id,
            label=body.label,
        )
    )
    return {"key_id": key_id, "secret": secret}


@router.post("/keys/{key_id}/rotate", status_code=201)
async def rotate_key(
    key_id: str, request: Request, service: ServiceOf, principal: Operator
) -> dict[str, Any]:
    """The old key opens things for `grace_s` more seconds."""
    body = parse(RotateBody, await read_object(request, service.settings.max_body_bytes))
    secret = new_secret()
    fresh = await service.database.run(
        lambda conn: keys.rotate_key(
            conn, key_id, secret=secret, grace_s=body.grace_s, now=service.clock(), by=principal.key_id
        )
    )
    return {"key_id": fresh, "secret": secret, "replaces": key_id}


@router.delete("/keys/{key_id}")
async def revoke_key(key_id: str, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    """The next request that brings it is refused."""
    await service.database.run(lambda conn: keys.revoke_key(conn, key_id, by=principal.key_id))
    return {"key_id": key_id, "revoked": True}


@router.get("/tenants")
async def list_tenants(service: ServiceOf, _: Operator) -> dict[str, Any]:
    return {"data": [asdict(one) for one in await service.database.run(tenants.list_tenants)]}


@router.get("/tenants/{tenant}")
async def read_tenant(tenant: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    return asdict(await service.database.run(lambda conn: tenants.find_tenant(conn, TenantId(tenant))))


@router.put("/tenants/{tenant}")
async def create_tenant(tenant: str, request: Request, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """One that exists stays as it is."""
    body = parse(TenantBody, await read_object(request, service.settings.max_body_bytes))
    policy = None if body.on_upgrade is None else OnUpgrade(body.on_upgrade)
    await service.database.run(lambda conn: keys.create_tenant(conn, TenantId(tenant), policy))
    return await read_tenant(tenant, service, _)


@router.put("/tenants/{tenant}/policy")
async def set_policy(
    tenant: str, request: Request, service: ServiceOf, principal: Operator
) -> dict[str, Any]:
    """In place of that before, from the next turn on; null leaves it to what is less specific."""
    body = parse(PolicyBody, await read_object(request, service.settings.max_body_bytes))
    policy = None if body.on_upgrade is None else OnUpgrade(body.on_upgrade)
    changed = await service.database.run(
        lambda conn: tenant_flow.set_policy(
            conn, TenantId(tenant), policy, by=principal.key_id, now=service.clock()
        )
    )
    return asdict(changed)


@router.put("/tenants/{tenant}/limits")
async def set_limits(
    tenant: str, request: Request, service: ServiceOf, principal: Operator
) -> dict[str, Any]:
    """In place of those before: what is left out is without a limit."""
    body = parse(LimitsBody, await read_object(request, service.settings.max_body_bytes))
    limits = Limits(**body.model_dump())
    await service.database.run(
        lambda conn: tenants.set_limits(
            conn, TenantId(tenant), limits, by=principal.key_id, now=service.clock()
        )
    )
    return asdict(limits)


def new_secret() -> str:
    return "sk-everturn-" + secrets.token_urlsafe(SECRET_BYTES)
