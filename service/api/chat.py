"""`POST /v1/chat/completions`: an answer without a conversation, by the same routing, checks and revisions.

Nothing of it is stored: no events, no KV. Whoever leaves the stream ends the work.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from service.api.asked import NOT_OF_CHAT, REVISION, pin_of, refuse_headers
from service.api.attempt import STOP, Answer, Attempt, AttemptLost, run_attempt
from service.api.body import read_object
from service.api.channel import TurnChannel, View
from service.api.chat_messages import ChatItem, named_as_sent
from service.api.chat_schemas import ChatBody, parse_chat_body
from service.api.errors import error_response
from service.api.responses import NO_BUFFERING
from service.api.turn_loop import MAX_ATTEMPTS
from service.api.wiring import Service, ServiceOf, Tenant, TenantOf
from service.conversation_flow import preview_turn
from service.domain.artifact import BootId
from service.domain.conversation import Conversation, evolve
from service.domain.errors import EngineFailed, EverturnError, InvalidInput
from service.domain.events import (
    ConversationEvent,
    ItemId,
    PlanKind,
    Sampling,
    TurnCompleted,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.items import CallId, ItemKind
from service.domain.telling import Begun, Ids, Reader
from service.domain.transcript import Transcript
from service.domain.turn import Turn
from service.turn_flow import find_engine
from service.turn_request import Beginning, TurnRequest

router = APIRouter()

STATELESS = "stateless: nothing is stored"
CHUNK = "chat.completion.chunk"
NO_ITEM = ItemId("none")
"""Messages have no ids here."""


@router.post("/v1/chat/completions")
async def create(request: Request, service: ServiceOf, tenant: TenantOf) -> Response:
    body, messages = parse_chat_body(await read_object(request, service.settings.max_body_bytes))
    refuse_headers(request, NOT_OF_CHAT)
    pin = pin_of(request.headers.get(REVISION))
    wanted = replace(_wanted(service, tenant, body, messages), revision=pin)
    try:
        state, turn = await service.database.run(lambda conn: preview_turn(conn, wanted, service.new_id))
    except InvalidInput as error:
        raise named_as_sent(error, messages) from error
    started = turn.started
    created = int(service.clock().timestamp())
    channel = TurnChannel(View(), cut=True)
    work = asyncio.create_task(_answer(service, _opened(state, turn), started, channel, messages))
    if not body.stream:
        answer = await work
        return JSONResponse(
            _completion(started, answer, created), headers=_headers(answer.completed.engine_revision)
        )
    # Until its first words a request can still be answered with a status of its own, if its client is not left without a byte for long.
    while not (channel.view.text or channel.view.ended):
        if not await channel.moved(channel.view, service.settings.heartbeat_s):
            break
    if channel.view.ended:
        await work
    return StreamingResponse(
        _chunks(
            body,
            started,
            created,
            channel=channel,
            work=work,
            heartbeat_s=service.settings.heartbeat_s,
        ),
        media_type="text/event-stream",
        headers=NO_BUFFERING | _headers(channel.view.revision or ""),
    )


async def _answer(
    service: Service,
    state: Conversation,
    started: TurnStarted,
    channel: TurnChannel,
    messages: tuple[ChatItem, ...],
) -> Answer:
    """Raises:
    NoEngine, InvalidInput: from the first attempt on.
    EngineFailed: of every attempt, or of one whose words were sent and which no other repeats.
    """
    avoid, last = frozenset[BootId](), ""
    try:
        for number in range(1, MAX_ATTEMPTS + 1):
            attempt = await _pinned(service, state, started, number, avoid)
            channel.begin(number, attempt.pinned.revision, STATELESS)
            try:
                answer = await run_attempt(service.http, attempt, channel.say)
            except AttemptLost as lost:
                avoid, last = avoid | {attempt.engine.boot}, str(lost)
                continue
            channel.say(answer.line)
            channel.record(started.turn, answer.line)
            return answer
        raise EngineFailed(f"{MAX_ATTEMPTS} attempts failed. The last: {last}")
    except InvalidInput as error:
        raise named_as_sent(error, messages) from error
    finally:
        channel.end()


async def _pinned(
    service: Service, state: Conversation, started: TurnStarted, number: int, avoid: frozenset[BootId]
) -> Attempt:
    engine, _ = await service.database.run(
        lambda conn: find_engine(conn, state, started=started, avoid=avoid)
    )
    pinned = TurnPinned(
        turn=started.turn,
        attempt=number,
        plan=PlanKind.COLD,
        reason=STATELESS,
        revision=engine.revision,
        engine=engine.boot,
        offer=None,
        carry_tokens=False,
    )
    return Attempt(
        tenant=state.tenant,
        turn=Turn.of(started),
        transcript=Transcript.of(state),
        pinned=pinned,
        engine=engine,
        item=NO_ITEM,
        publish=None,
        kv_lease_s=service.settings.kv_lease_s,
        note=STATELESS,
    )


async def _chunks(
    body: ChatBody,
    started: TurnStarted,
    created: int,
    *,
    channel: TurnChannel,
    work: "asyncio.Task[Answer]",
    heartbeat_s: float,
) -> AsyncIterator[str]:
    """Leaving this ends the work, and with it the request on the engine."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if body.with_usage else {}
        return _line(_head(started, channel.view.revision, created, CHUNK) | {"choices": [choice]} | usage)

    said = _Said(started.turn)
    try:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        sent, view, cuts = 0, None, channel.cuts
        while view is None or not (view.ended or (cuts is not None and cuts.lost)):
            if view is not None and not await channel.moved(view, heartbeat_s):
                yield ": working\n\n"
                continue
            view = channel.view
            line = cuts.text if cuts is not None else view.text
            for delta in said.deltas(line[sent:]):
                yield chunk(delta)
            sent = len(line)
        try:
            answer = await _unless_lost(work, channel)
        except EverturnError as error:
            yield _line(json.loads(bytes(error_response(error).body)))
            return
        yield chunk({}, _finish_reason(answer))
        if body.with_usage:
            document = _head(started, answer.completed.engine_revision, created, CHUNK)
            yield _line(document | {"choices": [], "usage": _usage(answer.completed)})
        yield "data: [DONE]\n\n"
    finally:
        work.cancel()


class _Said:
    """An answer as chat completions stream it: its messages as one text, its calls by their numbers, and no reasoning."""

    def __init__(self, turn: TurnId) -> None:
        self._reader = Reader()
        self._ids = Ids(turn, NO_ITEM)
        self._kind = ItemKind.MESSAGE
        self._calls = 0

    def deltas(self, more: str) -> Iterator[dict[str, Any]]:
        for told in self._reader.read(more):
            if isinstance(told, Begun):
                self._kind, name = told.kind, self._ids.next(told.kind)
                if name.call is not None:
                    self._calls += 1
                    yield self._call(_call_object(name.call, told.function, ""))
            elif self._kind is ItemKind.MESSAGE:
                yield {"content": told}
            elif self._kind is ItemKind.FUNCTION_CALL:
                yield self._call({"function": {"arguments": told}})

    def _call(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"tool_calls": [{"index": self._calls - 1} | fields]}


async def _unless_lost(work: "asyncio.Task[Answer]", channel: TurnChannel) -> Answer:
    if channel.cuts is not None and channel.cuts.lost:
        raise EngineFailed("The attempt that this text came from was lost; send the request again.")
    return await work


def _wanted(service: Service, tenant: Tenant, body: ChatBody, messages: tuple[ChatItem, ...]) -> TurnRequest:
    return TurnRequest(
        tenant=tenant.id,
        tenant_policy=tenant.on_upgrade,
        conversation=None,
        previous=None,
        alias=body.model,
        default_alias=body.model,
        messages=tuple(message.item for message in messages),
        instructions=None,
        on_upgrade=None,
        sampling=Sampling(
            max_output_tokens=body.most_tokens or service.settings.default_max_output_tokens,
            temperature=1.0 if body.temperature is None else float(body.temperature),
            top_p=1.0 if body.top_p is None else float(body.top_p),
        ),
        metadata={},
        wants=body.wants,
        idempotency_key=None,
        request_hash="",
    )


def _opened(state: Conversation, turn: Beginning) -> Conversation:
    told: list[ConversationEvent] = [turn.started, *([] if turn.asked is None else [turn.asked])]
    return reduce(evolve, told, state)


def _completion(started: TurnStarted, answer: Answer, created: int) -> dict[str, Any]:
    completed, calls = answer.completed, _calls(answer)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.said if answer.said or not calls else None,
        "refusal": None,
        "annotations": [],
    }
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    document = _head(started, completed.engine_revision, created, "chat.completion")
    return document | {"choices": [choice], "usage": _usage(completed)}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    parts = () if answer.parsed is None else answer.parsed.parts
    return [_call_object(part.call, part.function, part.text) for part in parts if part.call is not None]


def _call_object(call: CallId, function: str, arguments: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": function, "arguments": arguments}}


def _finish_reason(answer: Answer) -> str:
    finish = answer.completed.finish_reason
    return "tool_calls" if finish == STOP and _calls(answer) else finish


def _head(started: TurnStarted, revision: str | None, created: int, kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-" + started.turn.removeprefix("resp_"),
        "object": kind,
        "created": created,
        "model": started.alias,
        "system_fingerprint": revision,
    }


def _usage(completed: TurnCompleted) -> dict[str, Any]:
    return {
        "prompt_tokens": completed.prompt_tokens,
        "completion_tokens": len(completed.output),
        "total_tokens": completed.prompt_tokens + len(completed.output),
        "prompt_tokens_details": {"cached_tokens": completed.local_tokens},
    }


def _headers(revision: str) -> dict[str, str]:
    return {"x-everturn-revision": revision}


def _line(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"
