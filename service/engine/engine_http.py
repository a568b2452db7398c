"""HTTP to engines, as turns need it: many at once, with little of our own time for each."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from ssl import SSLContext
from typing import Any, Self

import httpx
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.resolver import ThreadedResolver

CONNECT_S = 3.0
"""For a free connection, or a new one."""
KEEPALIVE_S = 2.0
"""Below vLLM's own 5 s: a connection that its other end is about to close costs an attempt."""
MAX_CONNECTIONS = 1000
SETTLE_S = 0.1
"""For the end of an answer whose last word was read."""
AT_ONCE_BYTES = 2**20
"""Longer bodies are written piece by piece, with other work between."""

# An answer that came compressed would come late: whoever compresses waits for more.
HEADERS = {"accept-encoding": "identity", "user-agent": "everturn"}
JSON = {"content-type": "application/json"}


class BrokeOff(Exception):
    """No whole answer came; whether the request was acted on is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    body: bytes


class Stream:
    """An answer that is read while it comes."""

    def __init__(self, response: ClientResponse) -> None:
        self.status = response.status
        self._response = response
        self._rest = b""

    async def read(self) -> bytes:
        """All of it. Raises: BrokeOff."""
        try:
            return await self._response.read()
        except (ClientError, OSError) as error:
            raise BrokeOff(_words(error)) from error

    async def lines(self) -> list[str]:
        """The next that have come whole; none at its end. JSON may hold what Python takes for the end of a line, and SSE does not.

        Raises: BrokeOff.
        """
        whole: list[bytes] = []
        while not whole:
            try:
                came = await self._response.content.readany()
            except (ClientError, OSError) as error:
                raise BrokeOff(_words(error)) from error
            if not came:
                whole, self._rest = [self._rest] if self._rest else [], b""
                break
            *whole, self._rest = (self._rest + came).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    async def settle(self) -> None:
        """After the last word: read to its end, the connection serves the next request."""
        content = self._response.content
        with suppress(ClientError, OSError):
            async with asyncio.timeout(SETTLE_S):
                while not content.at_eof():
                    await content.readany()


class EngineHttp:
    """To be made where a loop runs. A POST is sent once at most; nothing follows redirects, keeps cookies or looks for a proxy."""

    def __init__(self, *, silence_s: float) -> None:
        """Args: silence_s: longest wait for the first byte of an answer, and for each that follows."""
        self._silence_s = silence_s
        self._session = ClientSession(
            connector=TCPConnector(
                limit=MAX_CONNECTIONS,
                keepalive_timeout=KEEPALIVE_S,
                ssl=_authorities(),
                resolver=ThreadedResolver(),
                use_dns_cache=False,
            ),
            cookie_jar=DummyCookieJar(),
            headers=HEADERS,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, url: str, *, headers: Mapping[str, str], body: Mapping[str, Any]) -> Reply:
        """Raises: BrokeOff."""
        async with self.stream(url, headers=headers, body=body) as answer:
            return Reply(status=answer.status, body=await answer.read())

    async def get(self, url: str, *, silence_s: float | None = None) -> Reply:
        """Raises: BrokeOff."""
        async with self._asked("GET", url, {}, None, silence_s or self._silence_s) as answer:
            return Reply(status=answer.status, body=await answer.read())

    def stream(
        self, url: str, *, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[Stream]:
        """POST. Whoever leaves it before its end closes the connection, which the engine takes for an abort.

        Raises: BrokeOff.
        """
        return self._asked("POST", url, {**JSON, **headers}, _sent(body), self._silence_s)

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BytesIO | None,
        silence_s: float,
    ) -> AsyncIterator[Stream]:
        try:
            # Also over what is sent, which has no limit of its own: an engine may have stopped reading.
            async with asyncio.timeout(CONNECT_S + silence_s):
                response = await self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=ClientTimeout(total=None, connect=CONNECT_S, sock_read=silence_s),
                )
        except (ClientError, OSError) as error:
            raise BrokeOff(_words(error)) from error
        try:
            yield Stream(response)
        finally:
            response.close()


@cache
def _authorities() -> SSLContext:
    """Those that the workers' client trusts."""
    return httpx.create_ssl_context(trust_env=False)


def _sent(body: Mapping[str, Any]) -> bytes | BytesIO:
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return data if len(data) <= AT_ONCE_BYTES else BytesIO(data)


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip().rstrip(".")
