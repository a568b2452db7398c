"""The two clients that engines are asked with, without what makes them slow: no URLs, headers or bodies are parsed twice."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from sqlalchemy.util import await_only

from service.engine.engine_http import BrokeOff, Reply

SCHEME = "http://"


@dataclass(slots=True)
class Request:
    host: str
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    wait_s: float
    """That evidence may be waited for."""
    silence_s: float
    """After which the client gives up."""


@dataclass(slots=True)
class Response:
    status_code: int
    document: dict[str, Any] = field(default_factory=dict)
    words: AsyncIterator[str] | None = None
    """Of a stream, line by line."""

    @property
    def content(self) -> bytes:
        return json.dumps(self.document).encode()


class Asked(Protocol):
    async def __call__(self, request: Request) -> Response:
        """Raises: httpx.TransportError."""


class Stream:
    """As `engine_http` has it."""

    def __init__(self, response: Response) -> None:
        self.status = response.status_code
        self._response = response

    async def read(self) -> bytes:
        return self._response.content

    async def lines(self) -> list[str]:
        words = self._response.words
        assert words is not None
        try:
            return [await anext(words)]
        except StopAsyncIteration:
            return []
        except httpx.TransportError as error:
            raise BrokeOff(str(error)) from error

    async def settle(self) -> None:
        """Nothing follows the last word."""


class AsyncClient:
    """In the place of `EngineHttp`."""

    def __init__(self, ask: Asked, silence_s: float) -> None:
        self._ask = ask
        self._silence_s = silence_s

    async def post(self, url: str, *, headers: Mapping[str, str], body: dict[str, Any]) -> Reply:
        response = await self._asked(made(url, self._silence_s, headers, body))
        return Reply(status=response.status_code, body=response.content)

    async def get(self, url: str, *, silence_s: float | None = None) -> Reply:
        response = await self._asked(made(url, silence_s or self._silence_s))
        return Reply(status=response.status_code, body=response.content)

    @asynccontextmanager
    async def stream(
        self, url: str, *, headers: Mapping[str, str], body: dict[str, Any]
    ) -> AsyncIterator[Stream]:
        response = await self._asked(made(url, self._silence_s, headers, body))
        try:
            yield Stream(response)
        finally:
            if response.words is not None:
                await response.words.aclose()  # type: ignore[attr-defined]  # a generator

    async def _asked(self, request: Request) -> Response:
        try:
            return await self._ask(request)
        except httpx.TransportError as error:
            raise BrokeOff(str(error)) from error


class Client:
    """In the place of httpx's, for code that runs in a greenlet."""

    def __init__(self, ask: Asked, silence_s: float) -> None:
        self._ask = ask
        self._silence_s = silence_s

    def post(self, url: str, *, headers: Mapping[str, str], json: dict[str, Any]) -> Response:
        answer: Response = await_only(self._ask(made(url, self._silence_s, headers, json)))
        return answer

    def get(self, url: str, *, params: Mapping[str, float], timeout: float) -> Response:
        answer: Response = await_only(self._ask(made(url, timeout, params=params)))
        return answer


def made(
    url: str,
    silence_s: float,
    headers: Mapping[str, str] | None = None,
    body: dict[str, Any] | None = None,
    *,
    params: Mapping[str, float] | None = None,
) -> Request:
    host, _, whole = url.removeprefix(SCHEME).partition("/")
    path, _, query = whole.partition("?wait_s=")
    return Request(
        host=SCHEME + host,
        path=f"/{path}",
        body=body or {},
        headers=headers or {},
        wait_s=float(query or (params or {}).get("wait_s", 0)),
        silence_s=silence_s,
    )
