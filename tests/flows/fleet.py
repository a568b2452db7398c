"""A small fleet and a conversation with one answer, made by the flows themselves."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from sqlalchemy import Connection

from service import conversation_flow, rollout_flow, turn_flow
from service.conversation_flow import Accepted
from service.domain.artifact import ArtifactId, BootId, MadeBy
from service.domain.events import (
    ConversationId,
    ItemId,
    KvSource,
    Role,
    Sampling,
    TenantId,
    TurnCompleted,
    TurnId,
)
from service.domain.evidence import Evidence, Published
from service.domain.new_items import NewMessage
from service.domain.plan import Engine, EngineRole
from service.domain.revision import RevisionDigest
from service.store import event_store, keys
from service.turn_flow import NotPinned, Pinned
from service.turn_request import TurnRequest
from tests.engines.simulated import descriptor

ACME = TenantId("acme")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROMPT = tuple(range(100, 200))
REQUEST = TurnRequest(
    tenant=ACME,
    tenant_policy=None,
    conversation=None,
    previous=None,
    alias=None,
    default_alias="production",
    messages=(NewMessage(role=Role.USER, text="hello"),),
    instructions=None,
    on_upgrade=None,
    sampling=Sampling(max_output_tokens=16, temperature=1.0, top_p=1.0),
    metadata={},
    idempotency_key=None,
    request_hash="h",
)

_numbers = count()


def new_id(prefix: str) -> str:
    return f"{prefix}{next(_numbers):032x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A conversation whose next turn is accepted."""

    conversation: ConversationId
    turn: TurnId


def add_engine(
    conn: Connection, weights: str, boot: str, *, role: EngineRole = EngineRole.BOTH
) -> RevisionDigest:
    engine = rollout_flow.NewEngine(
        boot=BootId(boot),
        address="http://127.0.0.1:9",
        role=role,
        descriptor=descriptor(weights),
        expected=None,
    )
    return rollout_flow.register_engine(
        conn, engine, allowed_hosts=frozenset({"127.0.0.1"}), lease_s=60, now=NOW
    )


def move_alias(conn: Connection, revision: RevisionDigest) -> None:
    rollout_flow.move_alias(conn, alias="production", revision=revision, on_upgrade=None, by="test", now=NOW)


def accept(conn: Connection, **changes: Any) -> Accepted:
    request = replace(REQUEST, **changes)
    return conversation_flow.accept_turn(conn, request, owner="api_test", lease_s=60, now=NOW, new_id=new_id)


def plan(conn: Connection, running: Running, *avoid: str, rebuild_min_tokens: int = 8) -> Pinned | NotPinned:
    return turn_flow.plan_attempt(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        turn=running.turn,
        avoid=frozenset(map(BootId, avoid)),
        rebuild_min_tokens=rebuild_min_tokens,
        now=NOW,
        new_id=new_id,
    )


def pin(conn: Connection, running: Running, *, rebuild_min_tokens: int = 8) -> Pinned:
    planned = plan(conn, running, rebuild_min_tokens=rebuild_min_tokens)
    assert isinstance(planned, Pinned)
    return planned


def completed(pinned: Pinned, **changes: Any) -> TurnCompleted:
    made = TurnCompleted(
        turn=pinned.pinned.turn,
        attempt=pinned.pinned.attempt,
        item=ItemId(new_id("msg_")),
        text="an answer",
        finish_reason="stop",
        extends=None,
        prompt_delta=PROMPT,
        output=(7, 8, 9),
        prompt_tokens=len(PROMPT),
        local_tokens=0,
        kv_source=KvSource.NONE,
        kv_reason="cold",
        requested_revision=pinned.pinned.revision,
        engine=pinned.pinned.engine,
        engine_revision=pinned.pinned.revision,
        loaded=None,
        published=None,
    )
    return replace(made, **changes)


def complete(conn: Connection, running: Running, event: TurnCompleted) -> None:
    turn_flow.complete_turn(
        conn, tenant=ACME, conversation=running.conversation, refusal=None, completed=event, now=NOW
    )


def answered(conn: Connection, weights: str = "a") -> Running:
    """A conversation with one answer from an engine of these weights, and a second turn accepted."""
    keys.create_tenant(conn, ACME)
    move_alias(conn, add_engine(conn, weights, f"boot_{weights}"))
    first = accept(conn)
    running = Running(conversation=first.conversation, turn=first.turn)
    complete(conn, running, completed(pin(conn, running)))
    second = accept(conn, conversation=first.conversation)
    return Running(conversation=first.conversation, turn=second.turn)


def published(engine: Engine, artifact: str = "kv_" + "a" * 32, tokens: int = 96) -> Published:
    return Published(
        artifact=ArtifactId(artifact),
        revision=engine.revision,
        producer=engine.boot,
        made_by=MadeBy.PREFILL,
        tokens=tokens,
        blocks=tokens // 4,
        bytes=tokens,
        expires_ms=4_000_000_000_000,
        tip="ab" * 32,
    )


def evidence(engine: Engine, **changes: Any) -> Evidence:
    made = Evidence(
        attempt="rb_1.1",
        boot=engine.boot,
        revision=engine.revision,
        prompt_tokens=len(PROMPT) + 3,
        published=published(engine),
    )
    return replace(made, **changes)


def events_of(conn: Connection, running: Running) -> list[object]:
    return list(event_store.read(conn, tenant=ACME, stream=running.conversation))
