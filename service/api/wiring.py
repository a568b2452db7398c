"""What every route is given: the parts of the running service, and who is asking."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from service.api.database import ALL_TENANTS, AUDIT_VIEWS, Database, Reach, reach_for
from service.api.metrics import Metrics
from service.api.query import Names, check_query
from service.api.rate_limit import RateLimiter
from service.api.turn_runner import TurnRunner
from service.api.waiting_line import WaitingLine
from service.domain.errors import Forbidden, Unauthenticated
from service.domain.events import OnUpgrade, TenantId
from service.domain.limits import Limits
from service.engine.engine_http import EngineHttp
from service.settings import Settings
from service.store import keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    settings: Settings
    database: Database
    http: EngineHttp
    """To the engines."""
    runner: TurnRunner
    line: WaitingLine
    """For those who read a turn that waits, here or in another process."""
    rates: RateLimiter
    metrics: Metrics
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    id: TenantId
    on_upgrade: OnUpgrade | None
    limits: Limits


async def service_of(request: Request) -> Service:
    """Asynchronous, though it waits for nothing: FastAPI takes what is not into a thread, for each request."""
    return cast("Service", request.app.state.service)


ServiceOf = Annotated[Service, Depends(service_of)]


async def authenticate(request: Request, service: ServiceOf) -> keys.Principal:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("No API key was given. Send it as 'Authorization: Bearer KEY'.")
    principal = await service.database.look(lambda conn: keys.authenticate(conn, secret.strip()))
    if principal is None:
        raise Unauthenticated(
            "Incorrect API key provided: it is not known here, or was revoked. Check that it is of this service, and whole."
        )
    check_query(request, cast("Names", request.app.state.queries))
    return principal


AnyKey = Annotated[keys.Principal, Depends(authenticate)]


async def tenant_of(principal: AnyKey, request: Request, service: ServiceOf) -> Tenant:
    if principal.tenant is None or principal.scope is not keys.Scope.TENANT:
        raise Forbidden(
            f"An {principal.scope.value}'s key cannot read or write conversations; use a tenant's key."
        )
    left = service.rates.take(principal.key_id, monotonic())
    if left is not None:
        request.state.headers = left.headers()
    reach_for(Reach(tenant=principal.tenant))
    return Tenant(id=principal.tenant, on_upgrade=principal.on_upgrade, limits=principal.limits)


async def operator(principal: AnyKey) -> keys.Principal:
    if principal.scope is not keys.Scope.OPERATOR:
        raise Forbidden(
            "This needs an operator's key; a tenant's key is for /v1, an auditor's for /admin/audit, an engine's for "
            "engines that are registered with it."
        )
    reach_for(ALL_TENANTS)
    return principal


async def engine(principal: AnyKey) -> keys.Principal:
    if principal.scope not in (keys.Scope.ENGINE, keys.Scope.OPERATOR):
        raise Forbidden("This needs an engine's or an operator's key; a tenant's key is for /v1.")
    reach_for(ALL_TENANTS)
    return principal


async def auditor(principal: AnyKey) -> keys.Principal:
    if principal.scope not in (keys.Scope.AUDITOR, keys.Scope.OPERATOR):
        raise Forbidden("This needs an auditor's or an operator's key; a tenant's key is for /v1.")
    reach_for(AUDIT_VIEWS)
    return principal


TenantOf = Annotated[Tenant, Depends(tenant_of)]
EngineOrOperator = Annotated[keys.Principal, Depends(engine)]
Operator = Annotated[keys.Principal, Depends(operator)]
Auditor = Annotated[keys.Principal, Depends(auditor)]
