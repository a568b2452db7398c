"""A turn as OpenAI's stream of events, in their order and numbered; text that was sent is never sent again.

An answer may need more than one attempt. When an attempt dies after some of its text was sent, the next one's
text is compared with what was sent: as long as one begins with the other, only the rest is sent. If they part,
the stream ends with `response.failed`, code `attempt_lost`, while the turn goes on: `GET /v1/responses/{id}`
has the accepted answer. A second attempt is announced by our own event `everturn.attempt`.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from service.api.channel import TurnChannel, View
from service.api.response_object import (
    opening_object,
    output_message,
    output_text,
    response_object,
    status_of,
)
from service.conversation_flow import StoredTurn
from service.domain.events import ItemId, TurnCompleted

ATTEMPT_LOST = (
    "The attempt that this text came from was lost, and the next one answers in other words. "
    "The turn goes on: GET /v1/responses/{} will have its answer."
)


async def turn_events(
    channel: TurnChannel, load: Callable[[], Awaitable[StoredTurn]], heartbeat_s: float
) -> AsyncIterator[str]:
    """`load` reads the turn as it is stored now."""
    writer = _Writer()
    stored = await load()
    opening = opening_object(stored)
    for name in ("response.created", "response.in_progress"):
        yield writer.event(name, response=opening)
    view = None
    while view is None or not view.ended:
        if view is not None and not await channel.moved(view, heartbeat_s):
            yield f": response.in_progress {json.dumps(view.note)}\n\n"
            continue
        view = channel.view
        for event in writer.progress(view):
            yield event
        if writer.lost:
            yield writer.failed(await load(), "attempt_lost", ATTEMPT_LOST.format(stored.turn.id))
            return
    stored = await load()
    for event in writer.ending(stored, view):
        yield event


class _Writer:
    """Keeps what one reader was sent."""

    def __init__(self) -> None:
        self.lost = False
        self._number = 0
        self._sent = ""
        self._attempt = 0
        self._item: ItemId | None = None

    def event(self, name: str, **fields: Any) -> str:
        data = {"type": name, "sequence_number": self._number} | fields
        self._number += 1
        return f"event: {name}\ndata: {json.dumps(data)}\n\n"

    def progress(self, view: View) -> Iterator[str]:
        if view.attempt > self._attempt > 0:
            yield self.event("everturn.attempt", attempt=view.attempt, revision=view.revision)
        self._attempt = view.attempt
        if view.item is not None and view.text:
            yield from self._text(view.item, view.text, final=False)

    def ending(self, stored: StoredTurn, view: View) -> Iterator[str]:
        turn = stored.turn
        if turn.completed is not None:
            yield from self._completed(stored, turn.completed)
            return
        code, message = view.failure or ("internal_error", "The turn ended without a result.")
        if turn.failed is not None:
            code, message = turn.failed.code, turn.failed.message
        yield self.failed(stored, code, message)

    def failed(self, stored: StoredTurn, code: str, message: str) -> str:
        ended = response_object(stored) | {
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": [],
        }
        return self.event("response.failed", response=ended)

    def _completed(self, stored: StoredTurn, completed: TurnCompleted) -> Iterator[str]:
        yield from self._text(completed.item, completed.text, final=True)
        if self.lost:
            yield self.failed(stored, "attempt_lost", ATTEMPT_LOST.format(completed.turn))
            return
        status = status_of(stored.turn)
        part = output_text(completed.text)
        place = {"item_id": completed.item, "output_index": 0, "content_index": 0}
        yield self.event("response.output_text.done", **place, text=completed.text, logprobs=[])
        yield self.event("response.content_part.done", **place, part=part)
        message = output_message(completed.item, status, [part])
        yield self.event("response.output_item.done", output_index=0, item=message)
        yield self.event(f"response.{status}", response=response_object(stored))

    def _text(self, item: ItemId, text: str, *, final: bool) -> Iterator[str]:
        if self._item is None:
            yield from self._open(item)
        if text.startswith(self._sent):
            if fresh := text.removeprefix(self._sent):
                self._sent = text
                place = {"item_id": item, "output_index": 0, "content_index": 0}
                yield self.event("response.output_text.delta", **place, delta=fresh, logprobs=[])
        elif final or not self._sent.startswith(text):
            self.lost = True

    def _open(self, item: ItemId) -> Iterator[str]:
        self._item = item
        message = output_message(item, "in_progress", [])
        yield self.event("response.output_item.added", output_index=0, item=message)
        yield self.event(
            "response.content_part.added", item_id=item, output_index=0, content_index=0, part=output_text("")
        )
