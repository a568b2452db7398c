"""A number for each request, in its answer and in the log, beside what else its answer is to carry."""

from collections.abc import Callable
from logging import getLogger

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = getLogger(__name__)

HEADER = "x-request-id"
STATE = "request_id"
"""Where a request keeps it, for what answers beyond this middleware: errors that nobody expected."""


class RequestId:
    def __init__(self, app: ASGIApp, new_id: Callable[[str], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._new_id("req_")
        scope.setdefault("state", {})[STATE] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers.update(scope.get("state", {}).get("headers", {}))
                if message["status"] >= 500:  # noqa: PLR2004 the class of the service's own failures
                    log.error(
                        "request %s: %s %s: %d", request_id, scope["method"], scope["path"], message["status"]
                    )
            await send(message)

        await self._app(scope, receive, send_with_id)
