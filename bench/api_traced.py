"""The service with a clock at each step of a turn up to its first text: `python -m bench.api_traced` in place of `-m service`.

A request that says in a header when its client began is traced; its steps go into a file as one line of JSON. The clock is
CLOCK_MONOTONIC, which all processes of a machine share.
"""

import functools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest.mock import patch

import service.__main__ as program
from bench.api_steps import FILE
from service.api import turn_loop
from service.api.app import create_app
from service.api.attempt import run_attempt
from service.api.channel import TurnChannel
from service.api.database import Database
from service.engine import client
from service.engine.engine_http import EngineHttp

HEADER = b"x-bench-began"
FIRST_TEXT = b'"response.output_text.delta"'

Marks = list[tuple[str, float]]
_marks: ContextVar[Marks | None] = ContextVar("marks", default=None)


def mark(name: str) -> None:
    marks = _marks.get()
    if marks is not None:
        marks.append((name, time.perf_counter()))


class Traced:
    """The application, watched at its door."""

    def __init__(self, app: Any, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        began = dict(scope.get("headers", ())).get(HEADER)
        if began is None:
            await self._app(scope, receive, send)
            return
        marks: Marks = [("began", float(began))]
        _marks.set(marks)
        mark("arrived")

        written = False

        async def watched(message: Any) -> None:
            nonlocal written
            await send(message)
            if not written and FIRST_TEXT in message.get("body", b""):
                written = True
                mark("written")
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(marks) + "\n")

        await self._app(scope, receive, watched)


def watch_database() -> None:
    plain, looked = Database.run, Database.look

    @functools.wraps(plain)
    async def run(self: Database, transaction: Callable[[Any], Any], **named: Any) -> Any:
        def inner(conn: Any) -> Any:
            mark("transaction begun")
            result = transaction(conn)
            mark("transaction done")
            return result

        mark("transaction asked")
        result = await plain(self, inner, **named)
        mark("transaction committed")
        return result

    async def look(self: Database, read: Callable[[Any], Any]) -> Any:
        def inner(conn: Any) -> Any:
            mark("look begun")
            result = read(conn)
            mark("look done")
            return result

        mark("look asked")
        return await looked(self, inner)

    patch.object(Database, "run", run).start()
    patch.object(Database, "look", look).start()


def watch_engine() -> None:
    stream, say, attempt, render = EngineHttp.stream, TurnChannel.say, run_attempt, client.render

    @asynccontextmanager
    async def timed(self: EngineHttp, url: str, **named: Any) -> AsyncIterator[Any]:
        name = url.rpartition("/")[2]
        mark(f"{name} asked")
        async with stream(self, url, **named) as answer:
            mark(f"{name} answered")
            yield answer

    async def begun(*given: Any) -> Any:
        mark("attempt")
        return await attempt(*given)

    async def rendered(*given: Any) -> Any:
        result = await render(*given)
        mark("rendered")
        return result

    def said(self: TurnChannel, text: str, *rest: Any, **named: Any) -> None:
        if text:
            mark("text")
        say(self, text, *rest, **named)

    patch.object(EngineHttp, "stream", timed).start()
    patch.object(TurnChannel, "say", said).start()
    patch.object(turn_loop, "run_attempt", begun).start()
    patch.object(client, "render", rendered).start()


def main() -> int:
    file = Path(os.environ[FILE])
    watch_database()
    watch_engine()

    def made(*given: Any, **named: Any) -> Traced:
        return Traced(create_app(*given, **named), file)

    patch.object(program, "create_app", made).start()
    return program.main(["serve"])


if __name__ == "__main__":
    sys.exit(main())
