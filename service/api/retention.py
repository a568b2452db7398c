"""`/admin/tenants/{tenant}/retention`: after how many days without a turn a tenant's conversations are erased."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from service.api.body import StrictBody, parse, read_object
from service.api.wiring import Operator, ServiceOf
from service.domain.events import TenantId
from service.store import retention, tenants

router = APIRouter(prefix="/admin/tenants/{tenant}/retention")

LONGEST_DAYS = 36_500


class RetentionBody(StrictBody):
    after_days: int = Field(ge=1, le=LONGEST_DAYS)


@router.get("")
async def read(tenant: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """Null where they are kept until somebody erases them."""
    await service.database.run(lambda conn: tenants.find_tenant(conn, TenantId(tenant)))
    found = await service.database.run(lambda conn: retention.list_retention(conn, TenantId(tenant)))
    return asdict(found[0]) if found else {"tenant": tenant, "after_days": None}


@router.put("")
async def set_days(tenant: str, request: Request, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    """What is older than that is erased within the hour: `everturn retention run --dry-run` says what that would be."""
    body = parse(RetentionBody, await read_object(request, service.settings.max_body_bytes))
    await service.database.run(
        lambda conn: retention.set_retention(
            conn,
            TenantId(tenant),
            after_days=body.after_days,
            by=principal.key_id,
            now=service.clock(),
        )
    )
    return await read(tenant, service, principal)


@router.delete("")
async def clear(tenant: str, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    await service.database.run(lambda conn: retention.clear_retention(conn, TenantId(tenant)))
    return await read(tenant, service, principal)
