"""A conversation answered on v12, whose next turn waits for a rebuild on v13."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from sqlalchemy import Connection, Engine

from service import erasure_flow, turn_flow
from service.domain.artifact import ArtifactId, BootId, MadeBy
from service.domain.conversation import Conversation
from service.domain.events import (
    ConversationCreated,
    ConversationId,
    Event,
    ItemId,
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
from service.domain.evidence import Published
from service.domain.plan import EngineRole, RebuildQueue
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId
from service.store import artifacts, event_store, fleet, rebuilds, turns
from service.store.rebuilds import Rebuild
from tests.domain.descriptors import V12, V13
from tests.workers.prefill_engine import LONG_HENCE_MS, PrefillEngine

ACME = TenantId("acme")
WINDOW = tuple(range(100, 228))
SAMPLING = Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0)
LONG_S = 3600.0
OLD_BOOT = BootId("boot_old")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    database: Engine
    rebuild: str
    conversation: ConversationId
    turn: TurnId
    stale: ArtifactId
    """KV of the answer on v12: what the rebuild's engine is offered."""

    def row(self) -> Rebuild:
        with self.database.begin() as conn:
            found = rebuilds.find(conn, self.rebuild)
        assert found is not None
        return found

    def ended(self) -> bool:
        return self.row().state not in (rebuilds.RebuildState.QUEUED, rebuilds.RebuildState.RUNNING)

    def state(self) -> Conversation:
        with self.database.begin() as conn:
            return event_store.load_conversation(conn, ACME, self.conversation)

    def ask(self) -> tuple[TurnId, str | None]:
        """The next turn, pinned, and the rebuild that it waits for."""
        turn = TurnId(new_id("resp_"))
        with self.database.begin() as conn:
            version = event_store.load_conversation(conn, ACME, self.conversation).version
            event_store.append(
                conn,
                tenant=ACME,
                stream=self.conversation,
                expected_version=version,
                events=[*_asked(turn)],
                now=now(),
            )
            return turn, _planned(conn, self.conversation, turn, LONG_S)

    def answer_on_the_old_revision(self) -> None:
        """A further turn, of 20 tokens and an answer of two."""
        turn = TurnId(new_id("resp_"))
        delta = tuple(range(300, 320))
        longer = replace(
            _answered(turn), extends=self.turn, prompt_delta=delta, prompt_tokens=len(WINDOW) + len(delta)
        )
        with self.database.begin() as conn:
            version = event_store.load_conversation(conn, ACME, self.conversation).version
            event_store.append(
                conn,
                tenant=ACME,
                stream=self.conversation,
                expected_version=version,
                events=[*_asked(turn), _pinned(turn), longer],
                now=now(),
            )

    def erase(self) -> None:
        with self.database.begin() as conn:
            erasure_flow.erase_conversation(
                conn, tenant=ACME, conversation=self.conversation, by="ada", reason="asked to", now=now()
            )

    def event_names(self) -> list[str]:
        with self.database.begin() as conn:
            return [e.name for e in event_store.read(conn, tenant=ACME, stream=self.conversation)]


def register(database: Engine, *engines: PrefillEngine) -> None:
    with database.begin() as conn:
        for descriptor in (V12, V13):
            fleet.register_revision(conn, descriptor, label=None)
        fleet.set_alias(conn, "production", V13.digest, None)
        for engine in engines:
            fleet.register_engine(
                conn,
                boot=engine.boot,
                revision=V13.digest,
                address=engine.address,
                role=EngineRole.BOTH,
                lease_s=LONG_S,
            )


def make_waiting(database: Engine, *, turn_lease_s: float = LONG_S) -> Waiting:
    """Needs an engine of v13 to be registered. The doorbell has not been rung."""
    conversation, first, second = (
        ConversationId(new_id("conv_")),
        TurnId(new_id("resp_")),
        TurnId(new_id("resp_")),
    )
    stale = ArtifactId(new_id("kv_"))
    history: list[Event] = [
        ConversationCreated(alias="production"),
        *_asked(first),
        _pinned(first),
        _answered(first),
        *_asked(second),
    ]
    with database.begin() as conn:
        event_store.append(
            conn, tenant=ACME, stream=conversation, expected_version=0, events=history, now=now()
        )
        artifacts.record(conn, tenant=ACME, conversation=conversation, published=_published(stale), now=now())
        rebuild = _planned(conn, conversation, second, turn_lease_s)
    assert rebuild is not None
    return Waiting(database=database, rebuild=rebuild, conversation=conversation, turn=second, stale=stale)


def make_warming(
    database: Engine,
    window: tuple[int, ...] = WINDOW,
    revision: RevisionDigest = V13.digest,
    offered: Published | None = None,
) -> Waiting:
    """As `make_waiting`, but no turn waits: the rebuild is a rollout's, and its turn has been answered."""
    conversation, turn = ConversationId(new_id("conv_")), TurnId(new_id("resp_"))
    stale, rebuild = ArtifactId(new_id("kv_")), new_id("rb_")
    history: list[Event] = [
        ConversationCreated(alias="production"),
        *_asked(turn),
        _pinned(turn),
        _answered(turn, window),
    ]
    with database.begin() as conn:
        event_store.append(
            conn, tenant=ACME, stream=conversation, expected_version=0, events=history, now=now()
        )
        artifacts.record(conn, tenant=ACME, conversation=conversation, published=_published(stale), now=now())
        if offered is not None:
            artifacts.record(conn, tenant=ACME, conversation=conversation, published=offered, now=now())
        rebuilds.enqueue(
            conn,
            rebuild=rebuild,
            tenant=ACME,
            conversation=conversation,
            turn=turn,
            attempt=1,
            revision=revision,
            offer=None if offered is None else offered.artifact,
            tokens_total=len(window),
            queue=RebuildQueue.BACKGROUND,
            rollout=RolloutId("ro_1"),
        )
    return Waiting(database=database, rebuild=rebuild, conversation=conversation, turn=turn, stale=stale)


def _planned(conn: Connection, conversation: ConversationId, turn: TurnId, lease_s: float) -> str | None:
    """The rebuild that the turn waits for."""
    turns.open_turn(
        conn,
        tenant=ACME,
        turn=turn,
        conversation=conversation,
        idempotency_key=None,
        request_hash="",
        owner="api",
        lease_s=lease_s,
    )
    planned = turn_flow.plan_attempt(
        conn,
        tenant=ACME,
        conversation=conversation,
        turn=turn,
        avoid=frozenset(),
        rebuild_min_tokens=64,
        now=now(),
        new_id=new_id,
    )
    assert isinstance(planned, turn_flow.Pinned)
    return planned.rebuild


def now() -> datetime:
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid4().hex}"


def make_answered(database: Engine) -> ConversationId:
    """One turn old, on v12, and nothing is open."""
    conversation, turn = ConversationId(new_id("conv_")), TurnId(new_id("resp_"))
    history: list[Event] = [
        ConversationCreated(alias="production"),
        *_asked(turn),
        _pinned(turn),
        _answered(turn),
    ]
    with database.begin() as conn:
        event_store.append(
            conn, tenant=ACME, stream=conversation, expected_version=0, events=history, now=now()
        )
    return conversation


def _asked(turn: TurnId) -> tuple[MessageAccepted, TurnStarted]:
    item = ItemId(new_id("msg_"))
    started = TurnStarted(
        turn=turn,
        items=(item,),
        alias="production",
        on_upgrade=OnUpgrade.REPLAY,
        policy_level=PolicyLevel.DEFAULT,
        sampling=SAMPLING,
    )
    return MessageAccepted(item=item, role=Role.USER, text="Hello"), started


def _pinned(turn: TurnId) -> TurnPinned:
    return TurnPinned(
        turn=turn,
        attempt=1,
        plan=PlanKind.COLD,
        reason="first turn",
        revision=V12.digest,
        engine=OLD_BOOT,
        offer=None,
        carry_tokens=True,
    )


def _answered(turn: TurnId, window: tuple[int, ...] = WINDOW) -> TurnCompleted:
    return TurnCompleted(
        turn=turn,
        attempt=1,
        item=ItemId(new_id("msg_")),
        text="Hi",
        finish_reason="stop",
        extends=None,
        prompt_delta=window[:-2],
        output=window[-2:],
        prompt_tokens=len(window) - 2,
        local_tokens=0,
        kv_source=KvSource.NONE,
        kv_reason="first turn",
        requested_revision=V12.digest,
        engine=OLD_BOOT,
        engine_revision=V12.digest,
        loaded=None,
        published=None,
    )


def _published(artifact: ArtifactId) -> Published:
    return Published(
        artifact=artifact,
        revision=V12.digest,
        producer=OLD_BOOT,
        made_by=MadeBy.DECODE,
        tokens=len(WINDOW),
        blocks=4,
        bytes=4096,
        expires_ms=LONG_HENCE_MS,
        tip="cd" * 32,
    )
