"""What every route is given: the parts of the running service, and who is asking."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, cast

import httpx
from fastapi import Depends
from starlette.requests import Request

from service.api.database import Database
from service.api.metrics import Metrics
from service.api.turn_runner import TurnRunner
from service.domain.errors import Forbidden, Unauthenticated
from service.domain.events import OnUpgrade, TenantId
from service.settings import Settings
from service.store import keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    settings: Settings
    database: Database
    http: httpx.AsyncClient
    """To the engines."""
    runner: TurnRunner
    metrics: Metrics
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    id: TenantId
    on_upgrade: OnUpgrade | None


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)


ServiceOf = Annotated[Service, Depends(service_of)]


async def authenticate(request: Request, service: ServiceOf) -> keys.Principal:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("No API key was given. Send it as 'Authorization: Bearer KEY'.")
    principal = await service.database.run(lambda conn: keys.authenticate(conn, secret.strip()))
    if principal is None:
        raise Unauthenticated("The API key is not known here. Check that it is of this service, and whole.")
    return principal


AnyKey = Annotated[keys.Principal, Depends(authenticate)]


async def tenant_of(principal: AnyKey) -> Tenant:
    if principal.tenant is None or principal.scope is not keys.Scope.TENANT:
        raise Forbidden("An operator's key cannot read or write conversations; use a tenant's key.")
    return Tenant(id=principal.tenant, on_upgrade=principal.on_upgrade)


async def operator(principal: AnyKey) -> keys.Principal:
    if principal.scope is not keys.Scope.OPERATOR:
        raise Forbidden("This needs an operator's key; a tenant's key is for /v1.")
    return principal


TenantOf = Annotated[Tenant, Depends(tenant_of)]
Operator = Annotated[keys.Principal, Depends(operator)]
