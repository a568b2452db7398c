"""Sends what protocol builds: asynchronous for turns, synchronous for the workers' rebuilds."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import httpx

from service.domain.conversation import Item
from service.domain.errors import EngineFailed
from service.domain.events import TurnAsked
from service.domain.evidence import Evidence
from service.domain.plan import Engine
from service.engine import protocol
from service.engine.protocol import Carried, Chunk, Done, GenerateSpec, Parsed, Rendered

CONNECT_S = 3.0
EVIDENCE_SLACK_S = 5.0
"""On top of the wait that the engine was asked for."""


KEEPALIVE_S = 2.0
"""Below vLLM's own 5 s: a connection that its other end is about to close costs an attempt."""


def timeouts(silence_s: float) -> httpx.Timeout:
    """Args: silence_s: longest wait for the next byte."""
    return httpx.Timeout(connect=CONNECT_S, read=silence_s, write=silence_s, pool=CONNECT_S)


async def stream_generate(
    http: httpx.AsyncClient, engine: Engine, spec: GenerateSpec
) -> AsyncIterator[Chunk]:
    """Ends only after a chunk with a reason to finish; leaving early aborts the request on the engine.

    Raises:
        EngineFailed: refused, aborted, broken off, silent for too long, or on another prompt than was sent.
        RevisionMismatch: the engine is not what the spec takes it to be.
        InvalidInput: the engine cannot take this prompt.
    """
    headers, body = protocol.build_generate(spec, stream=True)
    finished = started = False
    try:
        async with http.stream(
            "POST", engine.address + protocol.GENERATE_PATH, headers=headers, json=body
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise protocol.failure(response.status_code, await response.aread())
            async for line in response.aiter_lines():
                chunk = protocol.parse_chunk(line)
                if isinstance(chunk, Done):
                    break
                if chunk is not None:
                    if not started:
                        protocol.check_echo(spec, chunk.prompt)
                    started = True
                    finished = finished or chunk.finish_reason is not None
                    yield chunk
    except httpx.HTTPError as error:
        raise _broken(engine, error) from error
    if not finished:
        raise EngineFailed(f"Engine {engine.boot} closed the stream before its answer was finished.")


async def render(
    http: httpx.AsyncClient,
    engine: Engine,
    items: Sequence[Item],
    carried: Carried | None,
    asked: TurnAsked | None = None,
) -> Rendered:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput."""
    try:
        response = await http.post(
            engine.address + protocol.RENDER_PATH,
            headers=protocol.engine_headers(engine),
            json=protocol.build_render(items, carried, engine.model, asked),
        )
    except httpx.HTTPError as error:
        raise _broken(engine, error) from error
    return protocol.parse_render(response.status_code, response.content)


async def parse(
    http: httpx.AsyncClient, engine: Engine, text: str, token_ids: Sequence[int], asked: TurnAsked | None
) -> Parsed:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput."""
    try:
        response = await http.post(
            engine.address + protocol.PARSE_PATH,
            headers=protocol.engine_headers(engine),
            json=protocol.build_parse(text, token_ids, engine.model, asked),
        )
    except httpx.HTTPError as error:
        raise _broken(engine, error) from error
    return protocol.parse_parsed(response.status_code, response.content)


async def evidence(http: httpx.AsyncClient, engine: Engine, attempt: str, wait_s: float) -> Evidence | None:
    """Raises: EngineFailed."""
    try:
        response = await http.get(
            engine.address + protocol.ATTEMPTS_PATH + attempt,
            params={"wait_s": wait_s},
            timeout=wait_s + EVIDENCE_SLACK_S,
        )
    except httpx.HTTPError as error:
        raise _broken(engine, error) from error
    return protocol.parse_evidence(response.status_code, response.content)


async def max_model_len(http: httpx.AsyncClient, engine: Engine) -> int | None:
    """None where the engine cannot be asked any more."""
    with suppress(httpx.HTTPError, EngineFailed):
        response = await http.get(engine.address + protocol.IDENTITY_PATH)
        return protocol.parse_max_model_len(response.status_code, response.content)
    return None


def prefill(http: httpx.Client, address: str, spec: GenerateSpec) -> None:
    """Computes the prompt's KV, and publishes it if the spec says so; the one token made on the way is dropped.

    Raises:
        EngineFailed, RevisionMismatch, InvalidInput: as for a stream.
    """
    headers, body = protocol.build_generate(spec, stream=False)
    try:
        response = http.post(address + protocol.GENERATE_PATH, headers=headers, json=body)
    except httpx.HTTPError as error:
        raise EngineFailed(f"The engine at {address} cannot be reached: {_words(error)}.") from error
    protocol.check_echo(spec, protocol.parse_answer(response.status_code, response.content).prompt)


def prefill_evidence(http: httpx.Client, address: str, attempt: str, wait_s: float) -> Evidence | None:
    """Raises: EngineFailed."""
    try:
        response = http.get(
            address + protocol.ATTEMPTS_PATH + attempt,
            params={"wait_s": wait_s},
            timeout=wait_s + EVIDENCE_SLACK_S,
        )
    except httpx.HTTPError as error:
        raise EngineFailed(f"The engine at {address} cannot be reached: {_words(error)}.") from error
    return protocol.parse_evidence(response.status_code, response.content)


def _broken(engine: Engine, error: httpx.HTTPError) -> EngineFailed:
    return EngineFailed(f"Engine {engine.boot} at {engine.address} broke off: {_words(error)}.")


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__} {error}".strip().rstrip(".")
