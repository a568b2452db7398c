"""Events and rows of small made-up histories."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine

from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.events import (
    FLEET,
    ConversationCreated,
    ConversationId,
    Event,
    ItemId,
    KvRefused,
    KvSource,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    Role,
    Sampling,
    TenantId,
    TurnCompleted,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.evidence import Loaded, Published, Refusal
from service.domain.fleet_events import EngineRegistered
from service.domain.revision import Descriptor, RevisionDigest
from service.store import event_store
from tests.domain.descriptors import with_kv

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACME = TenantId("acme")
CHAT = ConversationId("conv_1")
TURN = TurnId("resp_1")
V12 = RevisionDigest("rev_" + "12" * 32)
V13 = RevisionDigest("rev_" + "13" * 32)
OLD_ENGINE = BootId("boot_old")
NEW_ENGINE = BootId("boot_new")
KV = ArtifactId("kv_" + "0" * 32)


def created() -> ConversationCreated:
    return ConversationCreated(alias="production")


def said(text: str, item: str = "msg_1") -> MessageAccepted:
    return MessageAccepted(item=ItemId(item), role=Role.USER, text=text)


def started(turn: TurnId = TURN) -> TurnStarted:
    return TurnStarted(
        turn=turn,
        items=(ItemId("msg_1"),),
        alias="production",
        on_upgrade=OnUpgrade.REPLAY,
        policy_level=PolicyLevel.DEFAULT,
        sampling=Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0),
    )


def pinned(
    turn: TurnId = TURN,
    *,
    attempt: int = 1,
    revision: RevisionDigest = V13,
    engine: BootId = NEW_ENGINE,
) -> TurnPinned:
    return TurnPinned(
        turn=turn,
        attempt=attempt,
        plan=PlanKind.REUSE,
        reason="same revision",
        revision=revision,
        engine=engine,
        offer=KV,
        carry_tokens=True,
    )


def completed(
    turn: TurnId = TURN,
    *,
    attempt: int = 1,
    engine: BootId = NEW_ENGINE,
    requested: RevisionDigest = V13,
    measured: RevisionDigest = V13,
    loaded: Loaded | None = None,
) -> TurnCompleted:
    return TurnCompleted(
        turn=turn,
        attempt=attempt,
        item=ItemId(f"msg_of_{turn}"),
        text="Paris.",
        finish_reason="stop",
        extends=None,
        prompt_delta=(1, 2, 3),
        output=(4, 5),
        prompt_tokens=3,
        local_tokens=0,
        kv_source=KvSource.NONE if loaded is None else KvSource.REUSED,
        kv_reason="as planned",
        requested_revision=requested,
        engine=engine,
        engine_revision=measured,
        loaded=loaded,
        published=None,
    )


def loaded(revision: RevisionDigest, producer: BootId) -> Loaded:
    return Loaded(artifact=KV, revision=revision, producer=producer, tokens=32, bytes=4096, seconds=0.25)


def refused(turn: TurnId = TURN, *, attempt: int = 1) -> KvRefused:
    refusal = Refusal(
        artifact=KV,
        reason=RefusalReason.REVISION_MISMATCH,
        detail="made under another revision",
        differing=("kv.weights", "kv.adapter"),
        artifact_revision=V12,
        artifact_producer=OLD_ENGINE,
    )
    return KvRefused(turn=turn, attempt=attempt, engine=NEW_ENGINE, engine_revision=V13, refusal=refusal)


def published(artifact: str = KV, *, expires_ms: int, tokens: int = 32) -> Published:
    return Published(
        artifact=ArtifactId(artifact),
        revision=V12,
        producer=OLD_ENGINE,
        made_by=MadeBy.DECODE,
        tokens=tokens,
        blocks=2,
        bytes=4096,
        expires_ms=expires_ms,
        tip="ab" * 32,
    )


def append(
    conn: Connection, *events: Event, stream: str = CHAT, tenant: TenantId = ACME, after: int = 0
) -> int:
    return event_store.append(
        conn, tenant=tenant, stream=stream, expected_version=after, events=events, now=NOW
    )


def store(engine: Engine, *events: Event, stream: str = CHAT, tenant: TenantId = ACME) -> None:
    """Committed, as a new stream."""
    with engine.begin() as conn:
        append(conn, *events, stream=stream, tenant=tenant)


def register_engines(engine: Engine, engines: Sequence[tuple[BootId, RevisionDigest]]) -> None:
    for boot, revision in engines:
        event = EngineRegistered(boot=boot, revision=revision, address="http://127.0.0.1:1", role="both")
        store(engine, event, stream=f"engine/{boot}", tenant=FLEET)


def descriptor(weights: str = "ab" * 32) -> Descriptor:
    """Its numbers are ones that a careless store would change."""
    architecture = {"scale": 1e22, "eps": 1e-05, "layers": 30, "one": 1.0, "tied": True, "extra": None}
    return with_kv(weights=weights, architecture=architecture)
