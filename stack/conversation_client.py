"""A conversation spoken to over the public API: turns as streams that are taken up again where they break off."""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from stack.errors import StackError
from stack.tenant_api import checked, unreachable

Json = dict[str, Any]

TRIES = 5
PAUSE_S = 0.5
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
WAITING = "everturn.waiting"
"""Not sent by the service: what the comments of a stream say, as an event."""


@dataclass(slots=True)
class ConversationClient:
    http: httpx.Client
    new_key: Callable[[], str]
    pause_s: float = PAUSE_S
    running: str | None = None
    """The response that is being answered, as far as it is known here."""
    asked: tuple[Json, str] | None = None
    """What it was asked with, and under which key."""

    def read(self, conversation: str) -> Json:
        return self._call("GET", f"/v1/conversations/{conversation}")

    def fork(self, conversation: str) -> Json:
        return self._call("POST", "/v1/conversations", json={"fork_of": {"conversation": conversation}})

    def say(self, body: Json) -> Iterator[Json]:
        """The events of a turn; its last is one of ENDS.

        Raises:
            StackError: refused, or lost for good.
        """
        last, self.running, self.asked = None, None, (body, self.new_key())
        for number in range(TRIES):
            if number:
                time.sleep(self.pause_s * number)
            try:
                with contextlib.closing(self._events(last)) as events:
                    for event in events:
                        yield event
                        if event["type"] == WAITING:
                            continue
                        last = event["sequence_number"]
                        if event["type"] in ENDS:
                            self.running = self.asked = None
                            return
            except httpx.TransportError as error:
                broken = error
                continue
            broken = httpx.ReadError("the stream ended early")
        raise unreachable(self.http, broken) from broken

    def cancel(self) -> None:
        """What is being answered; nothing where that has ended, or never began."""
        if self.asked is None:
            return
        if self.running is None:
            # Asked, and interrupted before it was told its name: the key finds it.
            with contextlib.closing(self._events(None)) as events:
                next(events, None)
        self._call("POST", f"/v1/responses/{self.running}/cancel")
        self.running = self.asked = None

    def settled(self, response: str) -> Json:
        """The response once it has ended, whatever became of its stream."""
        while True:
            found = self._call("GET", f"/v1/responses/{response}")
            if found["status"] not in ("in_progress", "queued"):
                return found
            time.sleep(self.pause_s)

    def _events(self, last: int | None) -> Generator[Json]:
        assert self.asked is not None  # noqa: S101 `say` has set it
        body, key = self.asked
        if self.running is None or last is None:
            streamed = body | {"stream": True}
            asked = self.http.stream("POST", "/v1/responses", json=streamed, headers={"idempotency-key": key})
        else:
            resumed = {"stream": "true", "starting_after": str(last)}
            asked = self.http.stream("GET", f"/v1/responses/{self.running}", params=resumed)
        with asked as answer:
            if not answer.is_success:
                answer.read()
                checked(answer)
            self.running = answer.headers.get("x-everturn-response", self.running)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
                elif line.startswith(": response.in_progress "):
                    yield {"type": WAITING, "note": json.loads(line.removeprefix(": response.in_progress "))}

    def _call(self, method: str, path: str, **options: Any) -> Json:
        try:
            return checked(self.http.request(method, path, **options))
        except httpx.TransportError as error:
            raise unreachable(self.http, error) from error


def failure_of(response: Json) -> StackError:
    error = response.get("error") or {}
    return StackError(f"the turn failed ({error.get('code')}): {error.get('message')}")
