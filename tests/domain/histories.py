"""Events of one conversation, as a flow would append them."""

from collections.abc import Iterable
from typing import Any

from service.domain.artifact import ArtifactId, BootId, RefusalReason
from service.domain.conversation import Conversation, fold
from service.domain.events import (
    AttemptFailed,
    ConversationCreated,
    ConversationEvent,
    ConversationId,
    ItemId,
    KvRebuilt,
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
    TurnFailed,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.evidence import Refusal
from tests.domain.descriptors import V12, V13

TURN = TurnId("resp_1")
OLD = ArtifactId("kv_0000000000000012")
SAMPLING = Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0)


def created() -> ConversationCreated:
    return ConversationCreated(alias="production")


def message(item: str = "msg_1", text: str = "Hello", role: Role = Role.USER) -> MessageAccepted:
    return MessageAccepted(item=ItemId(item), role=role, text=text)


def started(turn: TurnId = TURN, items: tuple[str, ...] = ("msg_1",)) -> TurnStarted:
    return TurnStarted(
        turn=turn,
        items=tuple(ItemId(i) for i in items),
        alias="production",
        on_upgrade=OnUpgrade.REPLAY,
        policy_level=PolicyLevel.DEFAULT,
        sampling=SAMPLING,
    )


def pinned(attempt: int = 1, turn: TurnId = TURN) -> TurnPinned:
    return TurnPinned(
        turn=turn,
        attempt=attempt,
        plan=PlanKind.COLD,
        reason="same revision; no stored KV",
        revision=V12.digest,
        engine=BootId("boot_1"),
        offer=None,
        carry_tokens=True,
    )


def refused(reason: RefusalReason, attempt: int = 1, artifact: str = OLD) -> KvRefused:
    return KvRefused(
        turn=TURN,
        attempt=attempt,
        engine=BootId("boot_1"),
        engine_revision=V13.digest,
        refusal=Refusal(artifact=artifact, reason=reason, detail="", differing=("weights",)),
    )


def rebuilt(attempt: int = 1) -> KvRebuilt:
    return KvRebuilt(
        turn=TURN,
        attempt=attempt,
        rebuild="rb_1",
        artifact=ArtifactId("kv_0000000000000013"),
        revision=V13.digest,
        producer=BootId("boot_2"),
        tokens=32,
    )


def completed(turn: TurnId = TURN, attempt: int = 1, **changes: Any) -> TurnCompleted:
    values: dict[str, Any] = {
        "item": ItemId(f"msg_{turn}"),
        "text": "Hi",
        "finish_reason": "stop",
        "extends": None,
        "prompt_delta": (1, 2, 3),
        "output": (4, 5),
        "prompt_tokens": 3,
        "local_tokens": 0,
        "kv_source": KvSource.NONE,
        "kv_reason": "no stored KV",
        "requested_revision": V12.digest,
        "engine": BootId("boot_1"),
        "engine_revision": V12.digest,
        "loaded": None,
        "published": None,
    }
    return TurnCompleted(turn=turn, attempt=attempt, **(values | changes))


def attempt_failed(attempt: int = 1) -> AttemptFailed:
    return AttemptFailed(turn=TURN, attempt=attempt, reason="engine died")


def failed(turn: TurnId = TURN) -> TurnFailed:
    return TurnFailed(turn=turn, code="no_engine", message="no engine")


def folded(events: Iterable[ConversationEvent]) -> Conversation:
    return fold(TenantId("acme"), ConversationId("conv_1"), events)
