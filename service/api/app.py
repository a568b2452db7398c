"""The application, wired from its settings; nothing of it exists before `create_app` is called."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from service.api import (
    admin,
    audit,
    chat,
    contracts,
    conversations,
    erasure,
    feed,
    keys,
    models,
    operations,
    rebuilds,
    responses,
    retention,
    rollouts,
    stored_responses,
)
from service.api.database import Database
from service.api.errors import on_bad_parameters, on_error, on_http_exception, on_unexpected
from service.api.metrics import Metrics
from service.api.openapi.document import OPERATIONS, document
from service.api.query import names_of
from service.api.rate_limit import RateLimiter
from service.api.request_id import RequestId
from service.api.turn_job import Tools, unheard
from service.api.turn_runner import TurnRunner
from service.api.waiting_line import WaitingLine
from service.api.wiring import Service
from service.domain.errors import EverturnError
from service.domain.events import TurnId
from service.domain.plan import RebuildQueue
from service.engine.engine_http import EngineHttp
from service.settings import Settings
from service.store.new_ids import new_id

ROUTED = (
    conversations,
    responses,
    stored_responses,
    chat,
    models,
    admin,
    rollouts,
    rebuilds,
    contracts,
    keys,
    audit,
    erasure,
    retention,
    feed,
    operations,
)
"""Modules with a router; in the order in which the OpenAPI document has them."""


class Everturn(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = document(self.routes)
        return self.openapi_schema


def now() -> datetime:
    return datetime.now(UTC)


def create_app(
    settings: Settings,
    *,
    ring: Callable[[str, RebuildQueue], None],
    ring_turn: Callable[[TurnId], None] = unheard,
) -> FastAPI:
    """Args:
    ring: tells the workers of a rebuild, by its id and its queue.
    ring_turn: tells them of a turn that waits for one of them.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = Database.at(
            settings.database_url.get_secret_value(),
            application_name="everturn-api",
            pool_size=settings.pool_size,
        )
        metrics = Metrics()
        owner = new_id("api_")
        async with EngineHttp(silence_s=settings.engine_silence_s) as http:
            tools = Tools(
                database=database,
                http=http,
                ring=ring,
                ring_turn=ring_turn,
                settings=settings,
                metrics=metrics,
                owner=owner,
                clock=now,
                new_id=new_id,
            )
            runner = TurnRunner(tools)
            app.state.service = Service(
                settings=settings,
                database=database,
                http=http,
                runner=runner,
                line=WaitingLine(database),
                rates=RateLimiter(settings.requests_per_minute),
                metrics=metrics,
                owner=owner,
                clock=now,
                new_id=new_id,
            )
            yield
            await runner.close()
        await database.close()

    app = Everturn(lifespan=lifespan, docs_url=None, redoc_url=None)
    # As `include_router`, but for what it analyses of each route a second time: a tenth of a second.
    app.router.routes.extend(route for module in ROUTED for route in module.router.routes)
    app.state.queries = names_of(app.routes, {where: told.query for where, told in OPERATIONS.items()})
    app.add_middleware(RequestId, new_id=new_id)
    app.add_exception_handler(EverturnError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_bad_parameters)
    app.add_exception_handler(SQLAlchemyError, on_error)
    app.add_exception_handler(Exception, on_unexpected)
    return app
