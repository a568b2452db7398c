"""httpx's client without what it has for browsers: no engine sets cookies, redirects or asks who is there, and looking for that took longer than asking."""

from typing import Any

import httpx


class EngineHttp(httpx.AsyncClient):
    def __init__(self, *, timeout: httpx.Timeout, limits: httpx.Limits) -> None:
        self._wire = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)
        super().__init__(timeout=timeout, transport=self._wire, trust_env=False)

    def build_request(self, method: str, url: httpx.URL | str, **given: Any) -> httpx.Request:
        timeout = given.pop("timeout")
        limits = self.timeout if timeout is httpx.USE_CLIENT_DEFAULT else httpx.Timeout(timeout)
        return httpx.Request(method, url, **given | {"extensions": {"timeout": limits.as_dict()}})

    async def send(self, request: httpx.Request, *, stream: bool = False, **_: Any) -> httpx.Response:
        response = await self._wire.handle_async_request(request)
        response.request = request
        if stream:
            return response
        try:
            await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response
