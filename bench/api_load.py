"""Requests with a stopwatch, over bare sockets: what measures must not weigh as much as what is measured."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

JSON = dict[str, Any]

DELTA = b'"response.output_text.delta"'
ENDS = (b'"response.completed"', b'"response.incomplete"')


@dataclass(slots=True)
class Streamed:
    began: float
    first_s: float = 0.0
    total_s: float = 0.0
    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    ended: bool = False
    """In good order."""
    id: str = ""
    """Of the response, where it has one."""

    @property
    def token_s(self) -> float:
        """Each after the first."""
        return (self.total_s - self.first_s) / (self.tokens - 1)


async def ask(url: str, path: str, key: str, body: JSON) -> JSON:
    """An answer in one piece."""
    reader, writer = await _sent(url, path, key, body)
    try:
        data = await reader.read()
    finally:
        writer.close()
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{path}: {data[:1000].decode(errors='replace')}")
    answer: JSON = json.loads(rest)
    return answer


async def stream_response(url: str, key: str, body: JSON, *, traced: bool = False) -> Streamed:
    """Of /v1/responses. `traced` tells a service that has clocks in it when this began."""
    seen = Streamed(time.perf_counter())
    extra = f"x-bench-began: {seen.began}\r\n" if traced else ""
    reader, writer = await _sent(url, "/v1/responses", key, body | {"stream": True}, extra)
    last = seen.began
    try:
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if DELTA in line:
                now = time.perf_counter()
                if seen.first_s:
                    seen.gaps_s.append(now - last)
                else:
                    seen.first_s = now - seen.began
                last = now
            elif any(end in line for end in ENDS):
                seen.total_s = time.perf_counter() - seen.began
                response = json.loads(line[6:])["response"]
                seen.tokens, seen.id = response["usage"]["output_tokens"], response["id"]
                seen.ended = True
    finally:
        writer.close()
    return seen


async def stream_chat(url: str, body: JSON) -> Streamed:
    """Of vLLM's own /v1/chat/completions."""
    seen = Streamed(time.perf_counter())
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    reader, writer = await _sent(url, "/v1/chat/completions", "none", asked)
    try:
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if not seen.first_s and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                seen.first_s = time.perf_counter() - seen.began
            if chunk.get("usage"):
                seen.total_s = time.perf_counter() - seen.began
                seen.tokens = chunk["usage"]["completion_tokens"]
                seen.ended = True
    finally:
        writer.close()
    return seen


async def _sent(
    url: str, path: str, key: str, body: JSON, extra: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**22)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n{extra}\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer
