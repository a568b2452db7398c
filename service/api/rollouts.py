"""`/admin/rollouts`: an alias moved from its revision to another in recorded steps, watched, stopped and taken back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service import rollout_advance_flow, rollout_command_flow
from service.api.body import StrictBody, parse, read_object
from service.api.wiring import Operator, Service, ServiceOf
from service.domain.errors import InvalidInput
from service.domain.revision import parse_digest
from service.domain.rollout import ACTIVE
from service.domain.rollout_eta import Warming, eta_s
from service.domain.rollout_events import Drain, Limits, RolloutId, Share, Strategy
from service.rollout_advance_flow import Progress
from service.store import rollouts
from service.store.rollouts import Standing

router = APIRouter(prefix="/admin/rollouts")

POLL_S = 0.5
LISTED = 50


class LimitsBody(StrictBody):
    refusals: int = 5
    failed_attempts: int = 5
    failed_rebuilds: int = 5
    failed_canaries: int = 0


class Choices(StrictBody):
    warm: int = 0
    warm_tokens_per_s: int | None = None
    max_engine_load: int | None = None
    drain: Literal["never", "unpinned", "always"] = "unpinned"
    limits: LimitsBody = LimitsBody()


class ShareBody(StrictBody):
    percent: int
    hold_s: int = 0


class StrategyBody(Choices):
    """As a rollout shows it."""

    shift: list[ShareBody] = Field(default=[ShareBody(percent=100)], max_length=100)


class RolloutBody(Choices):
    """Its strategy as one field, or field by field."""

    alias: str
    to: str
    from_: str | None = Field(default=None, alias="from")
    strategy: StrategyBody | None = None
    shift: list[int] = Field(default=[100], max_length=100)
    hold_s: int | list[int] = 0
    reason: str = Field(default="", max_length=1000)
    by: str | None = Field(default=None, min_length=1, max_length=200)


class WhyBody(StrictBody):
    reason: str = Field(default="", max_length=1000)
    by: str | None = Field(default=None, min_length=1, max_length=200)


@router.post("", status_code=201)
async def start(request: Request, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    body = parse(RolloutBody, await read_object(request, service.settings.max_body_bytes))
    wanted = rollout_command_flow.Wanted(
        alias=body.alias,
        source=None if body.from_ is None else parse_digest(body.from_, "from"),
        target=parse_digest(body.to, "to"),
        strategy=_strategy(body),
        reason=body.reason,
    )
    rollout = RolloutId(service.new_id("ro_"))
    by = body.by or principal.key_id

    def begun(conn: Connection) -> Progress:
        now = rollouts.clock(conn)
        rollout_command_flow.start(conn, wanted, rollout, by=by, now=now)
        return rollout_advance_flow.progress(conn, rollout, now)

    return _object(await service.database.run(begun))


@router.get("")
async def list_rollouts(service: ServiceOf, _: Operator, *, alias: str | None = None) -> dict[str, Any]:
    """The newest first."""
    found = await service.database.run(lambda conn: rollouts.list_newest(conn, alias=alias, limit=LISTED))
    return {"data": [_standing(standing) for standing in found]}


@router.get("/{rollout_id}")
async def read(rollout_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    return _object(await _progress(service, RolloutId(rollout_id)))


@router.post("/{rollout_id}/{how}")
async def move(
    rollout_id: str,
    how: Literal["pause", "resume", "abort", "back"],
    request: Request,
    service: ServiceOf,
    principal: Operator,
) -> dict[str, Any]:
    """What is answered is the rollout that goes on: of `back`, the one that leads back."""
    body = parse(WhyBody, await read_object(request, service.settings.max_body_bytes))
    why = {"by": body.by or principal.key_id, "reason": body.reason}
    rollout, successor = RolloutId(rollout_id), RolloutId(service.new_id("ro_"))

    def moved(conn: Connection) -> Progress:
        now = rollouts.clock(conn)
        match how:
            case "pause":
                after = rollout_command_flow.pause(conn, rollout, now=now, **why)
            case "resume":
                after = rollout_command_flow.resume(conn, rollout, now=now, **why)
            case "abort":
                after = rollout_command_flow.abort(conn, rollout, now=now, **why)
            case "back":
                after = rollout_command_flow.roll_back(conn, rollout, successor, now=now, **why)
        return rollout_advance_flow.progress(conn, after.rollout.id, now)

    return _object(await service.database.run(moved))


@router.get("/{rollout_id}/events")
async def events(
    rollout_id: str,
    request: Request,
    service: ServiceOf,
    _: Operator,
    *,
    after: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Its history and then what comes, with its progress between; `Last-Event-ID` takes it up again. Ends with the rollout."""
    resumed = request.headers.get("last-event-id", "")
    if resumed and not resumed.isdecimal():
        raise InvalidInput("'Last-Event-ID' must be the id of an event of this stream.", "Last-Event-ID")
    await _progress(service, RolloutId(rollout_id))
    stream = _stream(service, RolloutId(rollout_id), int(resumed or after))
    return StreamingResponse(stream, media_type="text/event-stream")


async def _stream(service: Service, rollout: RolloutId, version: int) -> AsyncIterator[str]:
    """Ends by itself, to be taken up again, before a service that stops would have to wait for it."""
    until = time.monotonic() + service.settings.shutdown_s
    said, spoke = "", time.monotonic()
    while time.monotonic() < until:
        told = await _told(service, rollout, version)
        progress = await _progress(service, rollout)
        for recorded in told:
            version += 1
            yield f"id: {version}\nevent: {recorded['type']}\ndata: {json.dumps(recorded)}\n\n"
        shown = _object(progress)
        steady = json.dumps({key: value for key, value in shown.items() if key not in ("age_s", "eta_s")})
        if steady != said:
            said, spoke = steady, time.monotonic()
            yield f"event: rollout.progress\ndata: {json.dumps(shown | {'type': 'rollout.progress'})}\n\n"
        elif time.monotonic() - spoke >= service.settings.heartbeat_s:
            spoke = time.monotonic()
            yield ": still there\n\n"
        if progress.standing.ended_at is not None and version >= progress.standing.version:
            return
        await asyncio.sleep(POLL_S)


async def _told(service: Service, rollout: RolloutId, after: int) -> list[dict[str, Any]]:
    return await service.database.run(lambda conn: rollouts.history(conn, rollout, after=after))


async def _progress(service: Service, rollout: RolloutId) -> Progress:
    return await service.database.run(
        lambda conn: rollout_advance_flow.progress(conn, rollout, rollouts.clock(conn))
    )


def _strategy(body: RolloutBody) -> Strategy:
    if body.strategy is None:
        return _chosen(body, _shares(body))
    twice = body.model_fields_set & {*StrategyBody.model_fields, "hold_s"}
    if twice:
        name = min(twice)
        raise InvalidInput(
            f"'{name}' is given beside 'strategy': give it there, or give no 'strategy'.", name
        )
    shares = (Share(percent=share.percent, hold_s=share.hold_s) for share in body.strategy.shift)
    return _chosen(body.strategy, tuple(shares))


def _shares(body: RolloutBody) -> tuple[Share, ...]:
    holds = body.hold_s if isinstance(body.hold_s, list) else [body.hold_s] * len(body.shift)
    if len(holds) != len(body.shift):
        raise InvalidInput("'hold_s' must be one number, or one for each percentage of 'shift'.", "hold_s")
    shares = zip(body.shift, holds, strict=True)
    return tuple(Share(percent=percent, hold_s=hold_s) for percent, hold_s in shares)


def _chosen(choices: Choices, shift: tuple[Share, ...]) -> Strategy:
    return Strategy(
        warm=choices.warm,
        warm_tokens_per_s=choices.warm_tokens_per_s,
        shift=shift,
        drain=Drain(choices.drain),
        limits=Limits(**choices.limits.model_dump()),
        max_engine_load=choices.max_engine_load,
    )


def _standing(standing: Standing) -> dict[str, Any]:
    rollout = standing.rollout
    return {
        "rollout": rollout.id,
        "alias": rollout.alias,
        "from": rollout.source,
        "to": rollout.target,
        "back_of": rollout.back_of,
        "state": rollout.state,
        "resumes_as": rollout.held if rollout.held is not rollout.state and rollout.state in ACTIVE else None,
        "step": rollout.step,
        "percent": rollout.percent,
        "reason": standing.reason,
        "waiting": standing.waiting if standing.ended_at is None else None,
        "drained": list(rollout.drained),
        "strategy": asdict(rollout.strategy),
        "started_at": standing.started_at.isoformat(),
        "since": standing.since.isoformat(),
        "ended_at": standing.ended_at.isoformat() if standing.ended_at else None,
    }


def _object(progress: Progress) -> dict[str, Any]:
    warmth, facts, standing = progress.warmth, progress.facts, progress.standing
    ended = standing.ended_at is not None
    left = eta_s(
        standing.rollout,
        facts,
        Warming(left=warmth.waiting + warmth.running, settled=progress.lately.done),
    )
    return _standing(standing) | {
        "warm": asdict(warmth),
        "troubles": asdict(facts.troubles),
        "turns_waiting": sum(progress.turns_waiting.values()),
        "turns_waiting_for": progress.turns_waiting,
        "age_s": None if ended else round((facts.now - standing.since).total_seconds(), 1),
        "eta_s": None if left is None or ended else round(left, 1),
    }
