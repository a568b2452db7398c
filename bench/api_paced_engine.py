"""An engine that takes as long as a real one and hardly any CPU: answers of made-up words, at a given pace, over bare sockets.

It is asked as vLLM is, by the service and through chat completions, and has cores of its own as good as wholly: it only waits.
"""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import uvloop

from service.domain.artifact import ArtifactId, BootId, MadeBy
from service.domain.evidence import Evidence, KvRequest, Published
from tests.engines.simulated import KEEP_MS, descriptor

BOOT = BootId("boot_paced")
DESCRIPTOR = descriptor("paced")
PROMPT = list(range(100, 126))
WORD = " word"
BLOCK = 32
REMEMBERED = 10_000
"""Attempts of which there is evidence: those before them have ended long since."""
EVENT = b"data: "


class Paced(asyncio.Protocol):
    """One connection; requests on it follow each other."""

    def __init__(self, first_s: float, token_s: float, attempts: "Attempts") -> None:
        self._first_s = first_s
        self._token_s = token_s
        self._attempts = attempts
        self._came = b""
        self._last = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, mark, rest = self._came.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(_header(head, b"content-length") or 0)
        if len(rest) < length:
            return
        self._came = rest[length:]
        self._last = _header(head, b"connection") == b"close"
        self._answer(head.split(b" ", 2)[1].decode(), rest[:length])

    def _answer(self, path: str, body: bytes) -> None:
        match path.partition("?")[0]:
            case "/everturn/render":
                shown = {"token_ids": PROMPT, "mode": "full", "reason": "paced", "form": None}
                self._whole(shown)
            case "/inference/v1/generate":
                asked = json.loads(body)
                self._attempts.began(asked)
                self._stream(asked["sampling_params"]["max_tokens"], _generated)
            case "/v1/chat/completions":
                asked = json.loads(body)
                self._stream(asked.get("max_completion_tokens") or asked["max_tokens"], _said)
            case "/everturn/identity":
                self._whole(identity())
            case name if name.startswith("/everturn/attempts/"):
                self._whole(self._attempts.evidence(name.rpartition("/")[2]))
            case _:
                self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", ended=True)

    def _whole(self, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._write(head.encode() + data, ended=True)

    def _write(self, data: bytes, *, ended: bool) -> None:
        self._transport.write(data)
        if ended and self._last:
            self._transport.close()

    def _stream(self, tokens: int, chunk: Callable[[int, int], bytes]) -> None:
        """Each at its own time, whatever the one before it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._write(head, ended=False)

        def send(number: int) -> None:
            if self._transport.is_closing():
                return
            self._write(_chunked(chunk(number, tokens)), ended=False)
            if number + 1 < tokens:
                loop.call_at(began + self._first_s + (number + 1) * self._token_s, send, number + 1)
            else:
                self._write(_chunked(EVENT + b"[DONE]\n\n") + b"0\r\n\r\n", ended=True)

        loop.call_at(began + self._first_s, send, 0)


class Attempts:
    def __init__(self) -> None:
        self._asked: dict[str, str | None] = {}
        self._order: deque[str] = deque()

    def began(self, asked: dict[str, Any]) -> None:
        kv = KvRequest.from_params(asked["kv_transfer_params"])
        if kv is None:
            raise SystemExit("a request without what the service says of its KV")
        self._asked[kv.attempt] = kv.publish
        self._order.append(kv.attempt)
        if len(self._order) > REMEMBERED:
            del self._asked[self._order.popleft()]

    def evidence(self, attempt: str) -> dict[str, Any]:
        handle = self._asked[attempt]
        published = None if handle is None else _published(handle)
        return Evidence(
            attempt=attempt,
            boot=BOOT,
            revision=DESCRIPTOR.digest,
            prompt_tokens=len(PROMPT),
            published=published,
        ).to_json()


def identity() -> dict[str, Any]:
    return {
        "boot": BOOT,
        "revision": DESCRIPTOR.digest,
        "descriptor": DESCRIPTOR.to_json(),
        "stop_token_ids": [2],
        "max_model_len": 4096,
    }


def _published(handle: str) -> Published:
    return Published(
        artifact=ArtifactId(handle),
        revision=DESCRIPTOR.digest,
        producer=BOOT,
        made_by=MadeBy.PREFILL,
        tokens=BLOCK,
        blocks=1,
        bytes=BLOCK,
        expires_ms=KEEP_MS,
        tip="ab" * 32,
    )


def _generated(number: int, tokens: int) -> bytes:
    choice = {
        "index": 0,
        "token_ids": [1000 + number],
        "text": WORD,
        "finish_reason": "length" if number + 1 == tokens else None,
        "logprobs": None,
    }
    echo = None if number else PROMPT
    return _event({"request_id": "paced", "choices": [choice], "prompt_token_ids": echo})


def _said(number: int, tokens: int) -> bytes:
    finish = "length" if number + 1 == tokens else None
    choice = {"index": 0, "delta": {"content": WORD}, "logprobs": None, "finish_reason": finish}
    chunk = {"id": "paced", "object": "chat.completion.chunk", "created": 0, "model": "bench"}
    event = _event(chunk | {"choices": [choice]})
    if finish is None:
        return event
    usage = {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": tokens,
        "total_tokens": len(PROMPT) + tokens,
    }
    return event + _event(chunk | {"choices": [], "usage": usage})


def _event(document: dict[str, Any]) -> bytes:
    return EVENT + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _header(head: bytes, wanted: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip().lower()
    return b""


async def serve(first_s: float, token_s: float) -> None:
    """Until its input ends."""
    loop = asyncio.get_running_loop()
    attempts = Attempts()
    server = await loop.create_server(lambda: Paced(first_s, token_s, attempts), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps(identity() | {"address": f"http://127.0.0.1:{port}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1]), float(sys.argv[2])))
