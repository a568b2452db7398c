"""An answer taken apart while it is generated, by vLLM's own parsers, and told beside its chunks."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from logging import getLogger
from typing import Any

from service.domain.evidence import TOLD_KEY
from service.domain.items import ItemKind

log = getLogger(__name__)

Fragment = tuple[str, str | None, str]
"""Kind of item, function of a call that begins, text: as `service.domain.telling` has it."""
Event = MutableMapping[str, Any]
Send = Callable[[Event], Awaitable[None]]
NOTHING: tuple[str, ItemKind | None] = ("", None)
STREAM = b"text/event-stream"
BETWEEN = b"\n\n"
DATA = b"data:"


class AnswerStream:
    """What a parser says that will not have to be taken back.

    What is only blank waits for a word. Of a parser that reads increments in another way than the whole, only what the model wrote
    as it stands is told. After anything else nothing more is: the parse of the whole answer has the rest.
    """

    def __init__(
        self,
        parser: Any,
        request: Any,
        prompt_token_ids: Sequence[int],
        markers: Mapping[int, str],
        most_calls: int | None = None,
    ) -> None:
        """Args:
        prompt_token_ids: what of the prompt belongs to this answer; whether it is reasoned in already, that says.
        markers: tokens that a parser is to see by themselves, with their text: some miss them among others.
        most_calls: after as many nothing more is told; None for any number.
        """
        self._parser = parser
        self._request = request
        self._prompt = list(prompt_token_ids)
        self._markers = markers
        self._is_one = bool(getattr(parser, "_engine_based", False))
        """Increments and the whole are read by the same machine."""
        self._open: ItemKind | None = None
        self._written = self._told = ""
        """All that the model wrote, and what was told of the item that is open."""
        self._blank = NOTHING
        self._call = -1
        self._calls, self._most_calls = 0, most_calls
        self._done = False

    def add(self, text: str, token_ids: Sequence[int], *, finished: bool) -> list[Fragment]:
        told: list[Fragment] = []
        pieces = list(_apart(text, token_ids, self._markers))
        for number, (piece, ids) in enumerate(pieces, 1):
            told += self._add(piece, ids, finished=finished and number == len(pieces))
        return told

    def _add(self, text: str, token_ids: list[int], *, finished: bool) -> list[Fragment]:
        if self._done:
            return []
        self._written += text
        try:
            delta = self._parser.parse_delta(text, token_ids, self._request, self._prompt, finished=finished)
        except Exception:  # a parser that cannot stream, or not this: no fault of the request's
            log.exception("the parser of a stream failed; the rest of its answer is told at its end")
            self._done = True
            return []
        if delta is None:
            return []
        told = [
            *self._said(ItemKind.REASONING, delta.reasoning),
            *self._said(ItemKind.MESSAGE, delta.content),
        ]
        for call in delta.tool_calls or ():
            told += self._called(call)
        return told

    def _said(self, kind: ItemKind, text: str | None) -> list[Fragment]:
        if not text or self._done:
            return []
        if kind is self._open:
            return self._checked(kind, None, text)
        before, of = self._blank
        text = before + text if of is kind else text
        if not text.strip():
            self._blank = (text, kind)
            return []
        return self._begun(kind, None, text)

    def _called(self, call: Any) -> list[Fragment]:
        name = getattr(call.function, "name", None)
        arguments = getattr(call.function, "arguments", None) or ""
        if name and call.index > self._call and self._calls != self._most_calls and not self._done:
            self._call, self._calls = call.index, self._calls + 1
            return self._begun(ItemKind.FUNCTION_CALL, name, arguments)
        goes_on = not name and call.index == self._call and self._open is ItemKind.FUNCTION_CALL
        self._done = self._done or not goes_on
        return self._checked(ItemKind.FUNCTION_CALL, None, arguments) if arguments and not self._done else []

    def _begun(self, kind: ItemKind, name: str | None, text: str) -> list[Fragment]:
        self._blank, self._open, self._told = NOTHING, kind, ""
        return self._checked(kind, name, text)

    def _checked(self, kind: ItemKind, name: str | None, text: str) -> list[Fragment]:
        self._told += text
        if self._is_one or self._told in self._written:
            return [(kind, name, text)]
        self._done = True
        return [] if name is None else [(kind, name, "")]


def _apart(
    text: str, token_ids: Sequence[int], markers: Mapping[int, str]
) -> Iterator[tuple[str, list[int]]]:
    """A chunk, before, at and after each marker that its text has."""
    ids: list[int] = []
    for token in token_ids:
        before, marker, after = text.partition(markers[token]) if token in markers else (text, "", "")
        if not marker:
            ids.append(token)
            continue
        if ids or before:
            yield before, ids
        yield marker, [token]
        text, ids = after, []
    if ids or text or not token_ids:
        yield text, ids


class ToldBeside:
    """Sends a stream of chunks on, each with what it tells."""

    def __init__(self, send: Send, answer: AnswerStream) -> None:
        self._send = send
        self._answer = answer
        self._rest = b""
        self._streams = False

    async def __call__(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self._streams = any(value.startswith(STREAM) for _, value in event.get("headers", ()))
        elif self._streams and event["type"] == "http.response.body":
            *whole, self._rest = (self._rest + event.get("body", b"")).split(BETWEEN)
            if not event.get("more_body"):
                whole, self._rest = [*whole, self._rest], b""
            told = b"".join(self._told(record) + BETWEEN for record in whole if record)
            event = {**event, "body": told}
        await self._send(event)

    def _told(self, record: bytes) -> bytes:
        data = record.removeprefix(DATA).strip()
        if not record.startswith(DATA) or not data.startswith(b"{"):
            return record
        document = json.loads(data)
        for choice in document.get("choices") or ():
            fragments = self._answer.add(
                choice.get("text") or "",
                choice.get("token_ids") or (),
                finished=choice.get("finish_reason") is not None,
            )
            if fragments:
                return DATA + b" " + json.dumps(document | {TOLD_KEY: fragments}).encode()
        return record
