"""`POST /v1/responses`: a turn asked for, streamed or waited for, or only counted."""

import asyncio
from dataclasses import replace
from time import monotonic
from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from service.api.acceptance import accept
from service.api.asked import NOT_OF_COUNTS, Asked, pin_of, refuse_headers
from service.api.body import read_object
from service.api.channel import TurnChannel, View
from service.api.errors import RETRY_SOON, STATUS_OF_FAILED_TURN, failed_turn_response
from service.api.listening import ListenedStream, listen
from service.api.prompt import Prompt, carried_window, render_prompt
from service.api.response_object import is_cancelled, response_object, tokens_loaded
from service.api.schemas import ResponseBody, parse_count_body, parse_input, parse_response_body, request_hash
from service.api.sse import turn_events
from service.api.terms import terms_of
from service.api.turn_job import Taken
from service.api.wiring import Service, ServiceOf, Tenant, TenantOf
from service.conversation_flow import (
    StoredTurn,
    find_response,
    preview_turn,
)
from service.domain import own_keys
from service.domain.conversation import Conversation
from service.domain.errors import InvalidInput
from service.domain.events import ConversationId, Sampling, TenantId, TurnId
from service.domain.new_items import NewItem
from service.domain.plan import Engine
from service.domain.transcript import Transcript
from service.domain.turn import TurnState, advance
from service.turn_flow import Pinned, find_engine
from service.turn_request import Beginning, TurnRequest

router = APIRouter()

HEADERS_WAIT_S = 0.5
CLIENT_GONE = 499
"""As proxies log it; nobody is left to read it."""
NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@router.post("/v1/responses")
async def create(request: Request, service: ServiceOf, tenant: TenantOf) -> Response:
    document = await read_object(request, service.settings.max_body_bytes, tenant.limits)
    body = parse_response_body(document)
    refuse_headers(request)
    own_keys.check_turn_keys(body.metadata or {})
    asked = Asked.by(request, request_hash(document))
    terms = terms_of(
        background=bool(body.background),
        headers=request.headers,
        metadata=body.metadata or {},
        settings=service.settings,
    )
    wanted = replace(
        _wanted(service, tenant, body, asked, parse_input(body.input, goes_on=body.goes_on)),
        turn=TurnId(service.new_id("resp_")),
        terms=terms,
        streamed=bool(body.stream),
    )
    taken = await accept(service, wanted)
    accepted = taken.accepted
    runner, turn = service.runner, accepted.turn
    if terms.background:
        if accepted.fresh:
            runner.ring(turn)
        if body.stream:
            return await stream_of(service, tenant.id, turn, runner.watch(tenant.id, turn), after=None)
        stored = await load(service, tenant.id, turn)
        return JSONResponse(response_object(stored), headers=extra_headers(stored))
    if accepted.fresh:
        channel = runner.start(tenant.id, taken, streamed=wanted.streamed, terms=terms)
    else:
        channel = runner.watch(tenant.id, turn)
    if body.stream:
        return await _streamed(request, service, tenant, taken, channel)
    view = await listen(request, channel, lambda: runner.left(turn))
    return await _answer(service, tenant, turn, view, channel.answered)


@router.post("/v1/responses/input_tokens")
async def count(request: Request, service: ServiceOf, tenant: TenantOf) -> dict[str, Any]:
    """By the engine's own rendering, and so of exactly the prompt that the turn would be answered to."""
    body = parse_count_body(await read_object(request, service.settings.max_body_bytes))
    refuse_headers(request, NOT_OF_COUNTS)
    messages = () if body.input is None else parse_input(body.input, goes_on=body.goes_on)
    wanted = _wanted(service, tenant, body, Asked.by(request), messages)

    def placed(conn: Connection) -> tuple[Conversation, Beginning, Engine, bool]:
        state, turn = preview_turn(conn, wanted, service.new_id)
        return state, turn, *find_engine(conn, state, started=turn.started)

    state, turn, engine, carry = await service.database.run(placed)
    transcript = replace(Transcript.of(state), asked=turn.asked)
    carried = carried_window(transcript) if carry else None
    prompt = await render_prompt(service.http, engine, transcript, carried, turn.started)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}


async def _streamed(
    request: Request, service: Service, tenant: Tenant, taken: Taken, channel: TurnChannel
) -> Response:
    """Of what its engine refuses at once, the error with its status. A stream that waits for something begins, to say so."""
    turn, begun = taken.accepted.turn, _pinned(taken)
    if await _takes_no_such_prompt(taken.prompt):
        if await listen(request, channel, lambda: service.runner.left(turn)) is None:
            return Response(status_code=CLIENT_GONE)
        begun = await load(service, tenant.id, turn)
    elif begun is None:
        await _settled(channel)
        begun = await load(service, tenant.id, turn)
    else:
        await service.runner.get_going()
    refused = _refused_before_words(begun)
    return refused or await stream_of(service, tenant.id, turn, channel, after=None, begun=begun)


async def _takes_no_such_prompt(prompt: asyncio.Task[Prompt] | None) -> bool:
    """Of an engine that was asked while the turn was committed, and so has mostly answered."""
    if prompt is None:
        return False
    await asyncio.wait({prompt}, timeout=HEADERS_WAIT_S)
    return prompt.done() and not prompt.cancelled() and isinstance(prompt.exception(), InvalidInput)


def _refused_before_words(stored: StoredTurn) -> Response | None:
    """Of a turn that failed on a fault of its request."""
    failed, streamed = stored.turn.failed, stored.turn.streamed
    if failed is None or is_cancelled(stored.turn) or failed.code in STATUS_OF_FAILED_TURN:
        return None
    if streamed is not None and any(streamed.pieces):
        return None
    return failed_turn_response(failed.code, failed.message, stored.turn.id)


async def _answer(
    service: Service, tenant: Tenant, turn: TurnId, view: View | None, answered: StoredTurn | None
) -> Response:
    if view is None:
        return Response(status_code=CLIENT_GONE)
    stored = answered or await load(service, tenant.id, turn)
    match stored.turn.state:
        case TurnState.COMPLETED:
            return JSONResponse(response_object(stored), headers=extra_headers(stored))
        case TurnState.FAILED if is_cancelled(stored.turn):
            return JSONResponse(response_object(stored), headers=extra_headers(stored))
        case TurnState.FAILED if stored.turn.failed is not None:
            return failed_turn_response(stored.turn.failed.code, stored.turn.failed.message, turn)
        case _:
            code, message = view.failure or ("internal_error", "The turn ended without a result.")
            answer = failed_turn_response(code, message, turn)
            if code == "storage_unavailable":
                # Not even that could be recorded: how the turn ends is told to whoever sends the request again.
                answer.headers.update(RETRY_SOON)
            return answer


def _wanted(
    service: Service,
    tenant: Tenant,
    body: ResponseBody,
    asked: Asked,
    messages: tuple[NewItem, ...],
) -> TurnRequest:
    conversation, metadata = body.conversation_id, body.metadata or {}
    sampling = Sampling(
        max_output_tokens=body.max_output_tokens or service.settings.default_max_output_tokens,
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=1.0 if body.top_p is None else float(body.top_p),
        top_logprobs=body.logprobs,
    )
    return TurnRequest(
        tenant=tenant.id,
        tenant_policy=tenant.on_upgrade,
        limits=tenant.limits,
        conversation=None if conversation is None else ConversationId(conversation),
        previous=None if body.previous_response_id is None else TurnId(body.previous_response_id),
        alias=body.model,
        default_alias=service.settings.default_alias,
        messages=messages,
        instructions=body.instructions,
        # The most explicit wins: a field of the body, a header, a name in the metadata.
        on_upgrade=own_keys.policy_of(
            body.on_upgrade or asked.on_upgrade or metadata.get(own_keys.ON_UPGRADE)
        ),
        revision=pin_of(body.revision or asked.revision or metadata.get(own_keys.REVISION)),
        sampling=sampling,
        truncate=body.truncation == "auto",
        wants=body.wants,
        metadata=metadata,
        idempotency_key=asked.idempotency_key,
        request_hash=asked.request_hash,
        head=asked.head,
        repeated=asked.repeated,
    )


async def _settled(channel: TurnChannel) -> None:
    """So that the headers of a stream can say which revision answers, where that is known soon."""
    deadline = monotonic() + HEADERS_WAIT_S
    while channel.view.item and not (channel.view.revision or channel.view.ended) and monotonic() < deadline:
        await channel.moved(channel.view, deadline - monotonic())


def _pinned(taken: Taken) -> StoredTurn | None:
    """As it stands, where it was planned with its acceptance."""
    begun = taken.accepted.begun
    if begun is None or not isinstance(taken.plan, Pinned):
        return None
    return replace(begun.stored, turn=advance(begun.stored.turn, taken.plan.pinned))


async def stream_of(
    service: Service,
    tenant: TenantId,
    turn: TurnId,
    channel: TurnChannel,
    *,
    after: int | None,
    begun: StoredTurn | None = None,
) -> StreamingResponse:
    """Args: begun: the turn as it stands, where that need not be read."""
    first = begun or await load(service, tenant, turn)
    opening = [first]

    async def read() -> StoredTurn:
        return opening.pop() if opening else channel.answered or await load(service, tenant, turn)

    events = turn_events(channel, read, service.settings.heartbeat_s, after)
    headers = NO_BUFFERING | extra_headers(first)
    return ListenedStream(events, channel, lambda: service.runner.left(turn), headers)


def extra_headers(stored: StoredTurn) -> dict[str, str]:
    """What is ours of the response, as far as it is known, for clients that see no other fields than OpenAI's."""
    turn, pinned, completed = stored.turn, stored.turn.pinned, stored.turn.completed
    reason = completed.kv_reason if completed else pinned.reason if pinned else None
    known = {
        "x-everturn-response": turn.id,
        "x-everturn-conversation": stored.conversation,
        "x-everturn-revision": pinned.revision if pinned else None,
        "x-everturn-plan": pinned.plan if pinned else None,
        "x-everturn-kv-source": completed.kv_source if completed else None,
        "x-everturn-kv-reason": None if reason is None else _as_header(reason),
        "x-everturn-kv-tokens-loaded": str(tokens_loaded(completed)) if completed else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _as_header(words: str) -> str:
    """A reason may name what clients and operators called something: no header takes more than a line of ASCII."""
    return " ".join(words.split()).encode("ascii", "replace").decode()


async def load(service: Service, tenant: TenantId, turn: TurnId) -> StoredTurn:
    return await service.database.run(lambda conn: find_response(conn, tenant, turn))
