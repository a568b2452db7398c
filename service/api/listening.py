"""Who listens to a turn: counted while they do, and told of when they go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.channel import TurnChannel, View


class ListenedStream(StreamingResponse):
    def __init__(
        self,
        events: AsyncIterator[str],
        channel: TurnChannel,
        left: Callable[[], None],
        headers: Mapping[str, str],
    ) -> None:
        """Args: left: called when it is over for its client, at its end or before."""
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._channel = channel
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._channel.read():
                await super().__call__(scope, receive, send)
        finally:
            self._left()


async def listen(request: Request, channel: TurnChannel, left: Callable[[], None]) -> View | None:
    """The end of a turn whose client waits for it; None where that client has gone meanwhile."""
    gone = asyncio.create_task(_disconnected(request))
    ended = asyncio.create_task(channel.ended())
    try:
        with channel.read():
            await asyncio.wait({gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        left()
        return None
    finally:
        gone.cancel()
        ended.cancel()


async def _disconnected(request: Request) -> None:
    """The body has been read: nothing else comes."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
