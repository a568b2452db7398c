"""From the tree of errors to OpenAI's envelope: one table, at the edge."""

from dataclasses import dataclass
from http import HTTPStatus
from logging import getLogger
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from service.api import request_id
from service.api.rate_limit import refused_headers
from service.domain.errors import (
    CanaryDiffers,
    Conflict,
    ConversationLocked,
    EnginePinned,
    Forbidden,
    Gone,
    HeadMoved,
    InvalidInput,
    NotFound,
    RevisionMismatch,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    VersionConflict,
)
from service.engine.protocol import NAMED_BY_CLIENTS

log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    status: int
    type: str = "invalid_request_error"
    code: str | None = None


TABLE: tuple[tuple[type[Exception], Shape], ...] = (
    (InvalidInput, Shape(status=400)),
    (Unauthenticated, Shape(status=401, code="invalid_api_key")),
    (Forbidden, Shape(status=403, type="permission_error", code="insufficient_permissions")),
    (NotFound, Shape(status=404, code="not_found")),
    (Gone, Shape(status=410, code="conversation_erased")),
    (TooManyRequests, Shape(status=429, type="requests", code="rate_limit_exceeded")),
    (ConversationLocked, Shape(status=400, code="conversation_locked")),
    (HeadMoved, Shape(status=412, code="precondition_failed")),
    (RevisionMismatch, Shape(status=409, code="revision_mismatch")),
    (EnginePinned, Shape(status=409, code="conversations_pinned")),
    (CanaryDiffers, Shape(status=409, code="canary_differs")),
    (Conflict, Shape(status=409, code="conflict")),
    (Unavailable, Shape(status=503, type="server_error", code="unavailable")),
    (DataError, Shape(status=400, code="invalid_value")),
    (OperationalError, Shape(status=503, type="server_error", code="storage_unavailable")),
    (InterfaceError, Shape(status=503, type="server_error", code="storage_unavailable")),
    # The server ended the transaction: it was idle, or open, for too long while this process stood still.
    (InternalError, Shape(status=503, type="server_error", code="storage_unavailable")),
    (PoolTimeout, Shape(status=503, type="server_error", code="storage_unavailable")),
)
"""The first that fits; anything else is ours, and 500."""

LISTS = {
    "model": "/v1/models",
    "revision": "/admin/revisions",
    "alias": "/admin/aliases",
    "engine": "/admin/engines",
    "rollout": "/admin/rollouts",
    "rebuild": "/admin/rebuilds",
    "contract": "/admin/contracts",
    "contract in force": "/admin/contracts",
    "key": "/admin/keys",
    "tenant": "/admin/tenants",
    "audit view": "/admin/audit",
}
"""Where whoever named one that is not there finds those that are."""

INTERNAL = Shape(status=500, type="server_error", code="internal_error")

STATUS_OF_CODE = {
    "model_not_found": 404,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "idempotency_key_reused": 422,
    "limit_request_bytes": 413,
    "limit_concurrent_turns": 429,
}
"""Of the caller's faults, those that HTTP has an own number for."""

STATUS_OF_FAILED_TURN = {
    "no_engine": 503,
    "queue_full": 503,
    "revision_unavailable": 503,
    "engine_failed": 503,
    "orphaned": 503,
    "storage_unavailable": 503,
    "still_running": 503,
    "deadline_exceeded": 504,
    "internal_error": 500,
}
"""By the code of its turn.failed; the others are faults of the input."""

PARAM_OF_FAILED_TURN = {code: param for param, code in NAMED_BY_CLIENTS.items()}
"""What an engine refused of a request, by the code; the others are faults of the input."""

PASSES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
"""By itself: nothing of the request is wrong."""
RETRY_SOON = {"retry-after": "1", "x-should-retry": "true"}
NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients repeat a 5xx by themselves; once a turn was accepted, that would be another turn."""


def envelope(
    status: int, *, message: str, type_: str, code: str | None, param: str | None = None, **more: Any
) -> JSONResponse:
    error = {"message": message, "type": type_, "param": param, "code": code} | more
    return JSONResponse({"error": error}, status_code=status)


def error_response(error: Exception) -> JSONResponse:
    shape = next((shape for kind, shape in TABLE if isinstance(error, kind)), INTERNAL)
    param = getattr(error, "param", None)
    code = getattr(error, "code", None) if isinstance(error, InvalidInput) else shape.code
    more = _facts(error)
    status = STATUS_OF_CODE.get(code or "", shape.status)
    response = envelope(
        status,
        message=_words(error, shape),
        type_=shape.type,
        code=code,
        param=param,
        **more,
    )
    response.headers.update(_retry_headers(error, status))
    return response


def _facts(error: Exception) -> dict[str, Any]:
    """For a program to go by, beside the words."""
    if isinstance(error, RevisionMismatch):
        return {"differing_fields": list(error.differing)}
    if isinstance(error, EnginePinned):
        return {"conversations": list(error.shown), "conversations_count": len(error.conversations)}
    return {}


def _retry_headers(error: Exception, status: int) -> dict[str, str]:
    """What OpenAI's clients go by before they repeat a request. What was refused here has changed nothing."""
    if isinstance(error, TooManyRequests):
        return refused_headers(error)
    if isinstance(error, VersionConflict) or status in PASSES:
        return RETRY_SOON
    return NO_RETRY if status == HTTPStatus.CONFLICT else {}


def failed_turn_response(code: str, message: str, turn: str) -> JSONResponse:
    status = STATUS_OF_FAILED_TURN.get(code, 400)
    fault = "invalid_request_error" if status == HTTPStatus.BAD_REQUEST else "server_error"
    param = PARAM_OF_FAILED_TURN.get(code, "input") if status == HTTPStatus.BAD_REQUEST else None
    response = envelope(status, message=message, type_=fault, code=code, param=param, response_id=turn)
    response.headers.update(NO_RETRY)
    return response


async def on_error(request: Request, error: Exception) -> JSONResponse:
    response = error_response(error)
    response.headers[request_id.HEADER] = getattr(request.state, request_id.STATE, "")
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        name = response.headers[request_id.HEADER]
        log.error("request %s: answered %d: %s", name, response.status_code, error, exc_info=error)
    return response


async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    response = await on_error(request, error)
    # Starlette raises it once more for the server to see, which then closes the connection: the client is to use another.
    response.headers["connection"] = "close"
    return response


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 registered for nothing else
    status = HTTPStatus(error.status_code)
    words = {
        HTTPStatus.NOT_FOUND: f"There is nothing at {request.method} {request.url.path}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}.",
    }.get(status, str(error.detail))
    code = {HTTPStatus.NOT_FOUND: "unknown_url", HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed"}
    response = envelope(status, message=words, type_="invalid_request_error", code=code.get(status))
    response.headers.update(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """That its path takes; the router says those only of the first route that it fits."""
    path = request.scope["path"]
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    return sorted(
        {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    )


async def on_bad_parameters(_request: Request, error: Exception) -> JSONResponse:
    """Of the path and the query; bodies are read by body.py."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 registered for nothing else
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return error_response(InvalidInput(f"'{param}': {first['msg']}.", param))


def _words(error: Exception, shape: Shape) -> str:
    if shape is INTERNAL:
        return "The service failed on this request; it is ours to mend. The request id finds it in the log."
    if shape.code == "storage_unavailable":
        return "The database cannot be reached or is too busy; nothing was accepted unless it shows when read back."
    if isinstance(error, DataError):
        return "A value of the request cannot be stored as it is: an id, a name or a path holds NUL or is too large."
    if isinstance(error, NotFound) and error.kind in LISTS:
        return f"{error} GET {LISTS[error.kind]} lists them."
    return str(error)
