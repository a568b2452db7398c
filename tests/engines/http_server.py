"""An ASGI application behind a real socket, in a thread of the test's own process."""

import asyncio
import logging
import socket
import threading
from typing import Any

import uvicorn

from service.__main__ import IDLE_CONNECTION_S

START_S = 20.0
STOP_S = 20.0


class HttpServer:
    def __init__(self, app: Any, *, port: int = 0) -> None:
        """Args: port: 0 for one that is free."""
        self._app = app
        # asyncio lets a small write wait for the client's acknowledgement, 40 ms, unless the socket says that it is TCP's.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._started = threading.Event()
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> "HttpServer":
        self._thread.start()
        assert self._started.wait(START_S), "the server did not start"
        return self

    def stop(self) -> None:
        """As SIGTERM does: running requests end first."""
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def kill(self) -> None:
        """As SIGKILL looks from outside: every connection is cut."""
        assert self._server is not None
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        assert self._server is not None
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self._server.force_exit = True
        self._server.should_exit = True

    def _serve(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            ws="none",
            timeout_keep_alive=IDLE_CONNECTION_S,
            timeout_graceful_shutdown=10,
        )
        self._server = _Server(config, self._started)

        async def serve(server: uvicorn.Server) -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve(sockets=[self._socket])

        asyncio.run(serve(self._server))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()
