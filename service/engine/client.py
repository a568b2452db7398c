"""Sends what protocol builds: asynchronous for turns, synchronous for the workers' rebuilds."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from http import HTTPStatus

import httpx

from service.domain.conversation import Item
from service.domain.errors import EngineFailed
from service.domain.events import TurnAsked
from service.domain.evidence import Evidence
from service.domain.plan import Engine
from service.engine import protocol
from service.engine.engine_http import CONNECT_S, BrokeOff, EngineHttp, Stream
from service.engine.protocol import Carried, Chunk, Done, GenerateSpec, Parsed, Rendered

EVIDENCE_SLACK_S = 5.0
"""On top of the wait that the engine was asked for."""


def timeouts(silence_s: float) -> httpx.Timeout:
    """Of the workers' client. Args: silence_s: longest wait for the next byte."""
    return httpx.Timeout(connect=CONNECT_S, read=silence_s, write=silence_s, pool=CONNECT_S)


async def stream_generate(http: EngineHttp, engine: Engine, spec: GenerateSpec) -> AsyncIterator[Chunk]:
    """Ends only after a chunk with a reason to finish; leaving early aborts the request on the engine.

    Raises:
        EngineFailed: refused, aborted, broken off, silent for too long, or on another prompt than was sent.
        RevisionMismatch: the engine is not what the spec takes it to be.
        InvalidInput: the engine cannot take this prompt.
    """
    headers, body = protocol.build_generate(spec, stream=True)
    finished = started = False
    try:
        async with http.stream(engine.address + protocol.GENERATE_PATH, headers=headers, body=body) as answer:
            if answer.status != HTTPStatus.OK:
                raise protocol.failure(answer.status, await answer.read())
            async for chunk in _chunks(answer):
                if not started:
                    protocol.check_echo(spec, chunk.prompt)
                started = True
                finished = finished or chunk.finish_reason is not None
                yield chunk
    except BrokeOff as error:
        raise _broken(engine, error) from error
    if not finished:
        raise EngineFailed(f"Engine {engine.boot} closed the stream before its answer was finished.")


async def render(
    http: EngineHttp,
    engine: Engine,
    items: Sequence[Item],
    carried: Carried | None,
    asked: TurnAsked | None = None,
) -> Rendered:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput."""
    try:
        reply = await http.post(
            engine.address + protocol.RENDER_PATH,
            headers=protocol.engine_headers(engine),
            body=protocol.build_render(items, carried, engine.model, asked),
        )
    except BrokeOff as error:
        raise _broken(engine, error) from error
    return protocol.parse_render(reply.status, reply.body)


async def parse(
    http: EngineHttp, engine: Engine, text: str, token_ids: Sequence[int], asked: TurnAsked | None
) -> Parsed:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput."""
    try:
        reply = await http.post(
            engine.address + protocol.PARSE_PATH,
            headers=protocol.engine_headers(engine),
            body=protocol.build_parse(text, token_ids, engine.model, asked),
        )
    except BrokeOff as error:
        raise _broken(engine, error) from error
    return protocol.parse_parsed(reply.status, reply.body)


async def evidence(http: EngineHttp, engine: Engine, attempt: str, wait_s: float) -> Evidence | None:
    """Raises: EngineFailed."""
    url = f"{engine.address}{protocol.ATTEMPTS_PATH}{attempt}?wait_s={wait_s:g}"
    try:
        reply = await http.get(url, silence_s=wait_s + EVIDENCE_SLACK_S)
    except BrokeOff as error:
        raise _broken(engine, error) from error
    return protocol.parse_evidence(reply.status, reply.body)


async def max_model_len(http: EngineHttp, engine: Engine) -> int | None:
    """None where the engine cannot be asked any more."""
    with suppress(BrokeOff, EngineFailed):
        reply = await http.get(engine.address + protocol.IDENTITY_PATH)
        return protocol.parse_max_model_len(reply.status, reply.body)
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


async def _chunks(answer: Stream) -> AsyncIterator[Chunk]:
    """Until the engine says that there are no more."""
    while lines := await answer.lines():
        for line in lines:
            chunk = protocol.parse_chunk(line)
            if isinstance(chunk, Done):
                await answer.settle()
                return
            if chunk is not None:
                yield chunk


def _broken(engine: Engine, error: BrokeOff) -> EngineFailed:
    return EngineFailed(f"Engine {engine.boot} at {engine.address} broke off: {error}.")


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__} {error}".strip().rstrip(".")
