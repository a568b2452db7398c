"""`/admin`: revisions, aliases and engines, for those who hold an operator's key."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service import canary_flow, rollout_flow
from service.api.body import StrictBody, parse, read_object
from service.api.schemas import Policy
from service.api.wiring import EngineOrOperator, Operator, ServiceOf
from service.domain.adapter import Adapter, parse_adapters
from service.domain.artifact import BootId
from service.domain.canary import TOKENS, CanaryFailed, Generation
from service.domain.errors import CanaryDiffers, InvalidInput, NotFound
from service.domain.events import ConversationId, OnUpgrade
from service.domain.plan import Engine, EngineRole
from service.domain.revision import Descriptor, RevisionDigest, parse_digest
from service.shift_flow import KeepPolicy
from service.store import adapters, artifacts, canaries, fleet
from service.store.keys import Principal, Scope

router = APIRouter(prefix="/admin")

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
BOOT_FORM = r"^boot_[0-9A-Za-z]{1,64}$"


class RevisionBody(StrictBody):
    descriptor: dict[str, Any]
    label: str | None = Field(default=None, max_length=200)


class AliasBody(StrictBody):
    revision: str
    on_upgrade: Policy | None = None
    by: str | None = Field(default=None, max_length=200)
    force: bool = False


class CanaryBody(StrictBody):
    """The engine's answer to `service.domain.canary.MESSAGES`, and how many tokens of it are to be compared."""

    prompt: list[TokenId] = Field(min_length=1, max_length=4096)
    answer: list[TokenId] = Field(min_length=TOKENS, max_length=TOKENS)
    compared: int = Field(ge=1, le=TOKENS)


class EngineBody(StrictBody):
    boot: str = Field(pattern=BOOT_FORM)
    address: str
    role: Literal["both", "prefill", "decode"]
    descriptor: dict[str, Any]
    expected_revision: str | None = None
    canary: CanaryBody | None = None


class AdaptersBody(StrictBody):
    adapters: list[dict[str, Any]]
    canaries: dict[str, CanaryBody] = Field(default_factory=dict)
    """By name: what the engine answers under that adapter."""


@router.post("/revisions", status_code=201)
async def register_revision(request: Request, service: ServiceOf, _: Operator) -> dict[str, Any]:
    body = parse(RevisionBody, await read_object(request, service.settings.max_body_bytes))
    descriptor = Descriptor.from_json(body.descriptor)
    revision = await service.database.run(
        lambda conn: rollout_flow.register_revision(conn, descriptor, label=body.label)
    )
    return {"revision": revision}


@router.get("/revisions")
async def list_revisions(service: ServiceOf, _: Operator) -> dict[str, Any]:
    known = await service.database.run(fleet.list_revisions)
    return {
        "data": [
            {"revision": r.revision, "label": r.label, "registered_at": r.registered_at.isoformat()}
            for r in known
        ]
    }


@router.get("/revisions/{digest}")
async def read_revision(digest: str, service: ServiceOf, _: EngineOrOperator) -> dict[str, Any]:
    revision = parse_digest(digest)
    descriptor = await service.database.run(lambda conn: fleet.find_descriptor(conn, revision))
    if descriptor is None:
        raise NotFound("revision", revision)
    return {"revision": revision, "descriptor": descriptor.to_json()}


@router.post("/revisions/{digest}/retire")
async def retire_revision(
    digest: str, service: ServiceOf, _: Operator, *, force: bool = False
) -> dict[str, Any]:
    """Takes all its engines out of the fleet."""
    revision = parse_digest(digest)
    retired = await service.database.run(
        lambda conn: rollout_flow.retire_revision(conn, revision, force=force)
    )
    return {"revision": revision, "engines": list(retired.engines)} | _affected(retired.conversations)


@router.put("/aliases/{name}")
async def move_alias(name: str, request: Request, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    body = parse(AliasBody, await read_object(request, service.settings.max_body_bytes))
    revision = parse_digest(body.revision)
    moved = await service.database.run(
        lambda conn: rollout_flow.move_alias(
            conn,
            alias=name,
            revision=revision,
            on_upgrade=_policy(body),
            by=body.by or principal.key_id,
            now=service.clock(),
            force=body.force,
        )
    )
    return asdict(moved)


def _policy(body: AliasBody) -> OnUpgrade | KeepPolicy | None:
    """Absent keeps it, null clears it."""
    if "on_upgrade" not in body.model_fields_set:
        return KeepPolicy()
    return OnUpgrade(body.on_upgrade) if body.on_upgrade else None


@router.get("/aliases")
async def list_aliases(service: ServiceOf, _: Operator) -> dict[str, Any]:
    return {"data": [asdict(alias) for alias in await service.database.run(fleet.list_aliases)]}


@router.post("/engines", status_code=201)
async def register_engine(
    request: Request, service: ServiceOf, principal: EngineOrOperator
) -> dict[str, Any]:
    body = parse(EngineBody, await read_object(request, service.settings.max_body_bytes))
    expected = body.expected_revision
    engine = rollout_flow.NewEngine(
        boot=BootId(body.boot),
        address=body.address.rstrip("/"),
        role=EngineRole(body.role),
        descriptor=Descriptor.from_json(body.descriptor),
        expected=None if expected is None else parse_digest(expected, "expected_revision"),
        by=principal.key_id,
    )
    settings = service.settings
    run = _canary_run(body.canary, required=settings.canary_required)

    hosts, measured = frozenset(settings.engine_hosts), engine.descriptor.digest
    rollout_flow.check_address(engine.address, hosts)

    def registered(conn: Connection) -> RevisionDigest | CanaryFailed:
        now = service.clock()
        _check_own(conn, engine.boot, principal, known=fleet.find_base(conn, engine.boot) is not None)
        if run is not None and engine.expected in (None, measured):
            failed = canary_flow.judge(conn, measured, run, boot=engine.boot, address=engine.address, now=now)
            if failed is not None:
                return failed
        return rollout_flow.register_engine(
            conn, engine, allowed_hosts=hosts, lease_s=settings.engine_lease_s, now=now
        )

    outcome = await service.database.run(registered)
    if isinstance(outcome, CanaryFailed):
        # Raised after the commit, so that the failure is on record.
        raise CanaryDiffers(canary_flow.words(outcome))
    return {"boot": engine.boot, "revision": outcome, "lease_s": settings.engine_lease_s}


def _canary_run(body: CanaryBody | None, *, required: bool) -> canary_flow.Run | None:
    if body is None:
        if required:
            raise InvalidInput(
                "'canary' is missing, and EVERTURN_CANARY_REQUIRED is set: start the engine without --canary off.",
                "canary",
            )
        return None
    return _run(body)


def _run(body: CanaryBody) -> canary_flow.Run:
    generation = Generation(prompt=tuple(body.prompt), answer=tuple(body.answer))
    return canary_flow.Run(generation=generation, compared=body.compared)


@router.get("/revisions/{digest}/canary")
async def read_canary(digest: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """What engines of the revision must answer, and the last of those that did not."""
    revision = parse_digest(digest)
    golden, failures = await service.database.run(
        lambda conn: (canaries.find_golden(conn, revision), canaries.failures(conn, revision))
    )
    return {
        "revision": revision,
        "recorded": None if golden is None else asdict(golden),
        "failures": [asdict(failed) for failed in failures],
    }


@router.delete("/revisions/{digest}/canary")
async def forget_canary(
    digest: str,
    service: ServiceOf,
    principal: Operator,
    *,
    reason: Annotated[str, Query(max_length=1000)] = "",
) -> dict[str, Any]:
    """The next engine of the revision records its answer anew."""
    revision, by = parse_digest(digest), principal.key_id
    await service.database.run(
        lambda conn: canary_flow.forget(conn, revision, by=by, reason=reason, now=service.clock())
    )
    return {"revision": revision, "recorded": None}


@router.post("/engines/{boot}/heartbeat")
async def heartbeat(
    boot: str,
    service: ServiceOf,
    principal: EngineOrOperator,
    *,
    requests: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> dict[str, Any]:
    """`requests`: that the engine has not answered yet, by its own count."""
    lease_s = service.settings.engine_lease_s

    def renewed(conn: Connection) -> adapters.Held:
        held = rollout_flow.renew_engine(conn, BootId(boot), lease_s=lease_s, requests=requests)
        _check_own(conn, BootId(boot), principal)
        return held

    return {"lease_s": lease_s, "adapters": await service.database.run(renewed)}


@router.put("/engines/{boot}/adapters")
async def serve_adapters(
    boot: str, request: Request, service: ServiceOf, principal: EngineOrOperator
) -> dict[str, Any]:
    body = parse(AdaptersBody, await read_object(request, service.settings.max_body_bytes))
    """What is answered is how they are served: one that answers its canary otherwise than its revision does gets no turns."""
    told = parse_adapters(body.adapters)
    runs = {model: _run(canary) for model, canary in body.canaries.items()}
    required = service.settings.canary_required

    def served(conn: Connection) -> tuple[Adapter, ...]:
        now = service.clock()
        rollout_flow.check_adapters(conn, BootId(boot), told)
        judged = canary_flow.judge_adapters(conn, BootId(boot), told, runs, required=required, now=now)
        rollout_flow.serve_adapters(conn, BootId(boot), judged, now=now)
        _check_own(conn, BootId(boot), principal)
        return judged

    judged = await service.database.run(served)
    return {"boot": boot, "adapters": [adapter.to_json() for adapter in judged]}


@router.post("/engines/{boot}/drain")
async def drain(
    boot: str, service: ServiceOf, principal: EngineOrOperator, *, force: bool = False
) -> dict[str, Any]:
    def drained(conn: Connection) -> tuple[ConversationId, ...]:
        pinned = rollout_flow.drain_engine(conn, BootId(boot), force=force)
        _check_own(conn, BootId(boot), principal)
        return pinned

    refused = await service.database.run(drained)
    return {"boot": boot, "state": "draining"} | _affected(refused)


@router.delete("/engines/{boot}")
async def retire(
    boot: str, service: ServiceOf, principal: EngineOrOperator, *, force: bool = False
) -> Response:
    def retired(conn: Connection) -> tuple[ConversationId, ...]:
        pinned = rollout_flow.retire_engine(conn, BootId(boot), force=force)
        _check_own(conn, BootId(boot), principal)
        return pinned

    refused = await service.database.run(retired)
    if refused:
        return JSONResponse({"boot": boot, "state": "gone"} | _affected(refused))
    return Response(status_code=204)


def _check_own(conn: Connection, boot: BootId, principal: Principal, *, known: bool = True) -> None:
    """After the work, whose transaction it ends: of a boot that is not there, that is what is said."""
    if principal.scope is Scope.ENGINE and known:
        rollout_flow.check_own(conn, boot, principal.key_id)


def _affected(conversations: tuple[ConversationId, ...]) -> dict[str, Any]:
    """Those that are `stay_strict` on a revision that nobody serves any more."""
    if not conversations:
        return {}
    return {"conversations": list(conversations), "conversations_count": len(conversations)}


@router.get("/engines")
async def list_engines(service: ServiceOf, _: Operator) -> dict[str, Any]:
    """Each with the adapters that it serves; those without a revision say why, and no turn goes to them."""
    known, served = await service.database.run(
        lambda conn: (fleet.list_engines(conn), adapters.list_adapters(conn))
    )
    return {"data": [_listed(engine, served.get(engine.boot, [])) for engine in known]}


def _listed(engine: Engine, served: list[dict[str, str | None]]) -> dict[str, Any]:
    listed = asdict(engine) | {"adapters": served}
    del listed["model"]
    return listed


@router.get("/conversations/{conversation_id}/artifacts")
async def list_artifacts(conversation_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """What the planner may offer; empty for a conversation without KV, or an unknown one."""
    found = await service.database.run(
        lambda conn: artifacts.list_artifacts(conn, ConversationId(conversation_id))
    )
    return {"data": [asdict(artifact) for artifact in found]}
