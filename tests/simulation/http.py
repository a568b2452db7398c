"""What of httpx's clients the engine client uses, without what makes them slow: no URLs, headers or bodies are parsed twice."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy.util import await_only

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

    async def aread(self) -> bytes:
        return self.content

    async def aiter_lines(self) -> AsyncIterator[str]:
        assert self.words is not None
        async for word in self.words:
            yield word


class Asked(Protocol):
    async def __call__(self, request: Request) -> Response:
        """Raises: httpx.TransportError."""


class AsyncClient:
    def __init__(self, ask: Asked, silence_s: float) -> None:
        self._ask = ask
        self._silence_s = silence_s

    async def post(self, url: str, *, headers: Mapping[str, str], json: dict[str, Any]) -> Response:
        return await self._ask(made(url, self._silence_s, headers, json))

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, float] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 httpx's
    ) -> Response:
        return await self._ask(made(url, timeout, params=params))

    @asynccontextmanager
    async def stream(
        self, _method: str, url: str, *, headers: Mapping[str, str], json: dict[str, Any]
    ) -> AsyncIterator[Response]:
        response = await self.post(url, headers=headers, json=json)
        try:
            yield response
        finally:
            if response.words is not None:
                await response.words.aclose()  # type: ignore[attr-defined]  # a generator


class Client:
    """For code that runs in a greenlet."""

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
    host, _, path = url.removeprefix(SCHEME).partition("/")
    return Request(
        host=SCHEME + host,
        path=f"/{path}",
        body=body or {},
        headers=headers or {},
        wait_s=float((params or {}).get("wait_s", 0)),
        silence_s=silence_s,
    )
