"""A client that does as OpenAI's does, since it is OpenAI's: three tries under one key, and later once more."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx2
import openai
from openai import OpenAI

ONCE_AND_TWO_RETRIES = 2
TIMEOUT_S = 30.0
PATIENCE_S = 60.0


class Outcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    """The turn was accepted, and ended without an answer."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    conversation: str
    key: str
    text: str
    streamed: bool = False
    revision: str | None = None
    """The only one that may answer."""

    @property
    def headers(self) -> dict[str, str]:
        pin = {} if self.revision is None else {"x-everturn-revision": self.revision}
        return {"Idempotency-Key": self.key} | pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    outcome: Outcome
    response: str = ""
    text: str = ""
    """The answer, or why there is none."""


def connect(url: str, key: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=ONCE_AND_TWO_RETRIES, timeout=TIMEOUT_S)


def send(client: OpenAI, ask: Ask) -> Told:
    try:
        return _streamed(client, ask) if ask.streamed else _waited(client, ask)
    except openai.APIStatusError as error:
        body = body_of(error)
        if has_ended(error):
            return Told(outcome=Outcome.FAILED, response=body["response_id"], text=str(body["code"]))
        return Told(outcome=Outcome.UNKNOWN, text=f"{error.status_code} {body.get('code')}")
    except (openai.APIError, httpx2.TransportError) as error:
        return Told(outcome=Outcome.UNKNOWN, text=f"{type(error).__name__}: {error}")


def has_ended(error: openai.APIStatusError) -> bool:
    """Whether the turn was accepted, and is over without an answer."""
    return "response_id" in body_of(error) and error.response.headers.get("x-should-retry") != "true"


def body_of(error: openai.APIStatusError) -> dict[str, Any]:
    return error.body if isinstance(error.body, dict) else {}


def settle(client: OpenAI, ask: Ask) -> Told:
    """Sent again, under the same key, until its outcome is known; still unknown once patience is over."""
    deadline = time.monotonic() + PATIENCE_S
    while (told := send(client, ask)).outcome is Outcome.UNKNOWN and time.monotonic() < deadline:
        time.sleep(0.1)
    return told


def _waited(client: OpenAI, ask: Ask) -> Told:
    answer = client.responses.create(
        model="production",
        input=ask.text,
        conversation=ask.conversation,
        extra_headers=ask.headers,
    )
    return Told(outcome=Outcome.ANSWERED, response=answer.id, text=answer.output_text)


def _streamed(client: OpenAI, ask: Ask) -> Told:
    stream = client.responses.create(
        model="production",
        input=ask.text,
        conversation=ask.conversation,
        stream=True,
        extra_headers=ask.headers,
    )
    for event in stream:
        if event.type == "response.completed":
            return Told(outcome=Outcome.ANSWERED, response=event.response.id, text=event.response.output_text)
        if event.type == "response.failed":
            code = event.response.error.code if event.response.error else ""
            return Told(outcome=Outcome.FAILED, response=event.response.id, text=str(code))
    return Told(outcome=Outcome.UNKNOWN, text="the stream broke off")
