"""One event of each kind, as the rows in `golden/` hold it. New fields get defaults here, old rows never change."""

from collections.abc import Mapping
from dataclasses import replace

from service.domain.artifact import ArtifactId, BootId, RefusalReason
from service.domain.canary import CanaryFailed, CanaryForgotten, CanaryRecorded
from service.domain.contract import Contract
from service.domain.events import (
    AliasMoved,
    AttemptFailed,
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationForked,
    ConversationId,
    ConversationUpdated,
    Event,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemDeleted,
    ItemId,
    KvRebuilt,
    KvRefused,
    KvSource,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    ReasoningAccepted,
    ResponseDeleted,
    Role,
    Sampling,
    TurnAsked,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.evidence import Loaded, Refusal
from service.domain.fleet_events import (
    AdapterServed,
    AdapterWithdrawn,
    ContractApproved,
    ContractRevoked,
    EngineRegistered,
    TenantPolicySet,
)
from service.domain.items import CallId, ItemKind, Part
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import (
    Drain,
    Limits,
    RolloutAborted,
    RolloutDone,
    RolloutId,
    RolloutPaused,
    RolloutResumed,
    RolloutRolledBack,
    RolloutStarted,
    RolloutState,
    RolloutStepped,
    Share,
    Strategy,
)
from service.domain.scores import Candidate, TokenLogprob

TURN = TurnId("resp_01")
V12 = RevisionDigest("rev_" + "12" * 32)
V13 = RevisionDigest("rev_" + "13" * 32)
KV = ArtifactId("kv_" + "0" * 32)
BOOT = BootId("boot_01")
ROLLOUT, BACK = RolloutId("ro_01"), RolloutId("ro_02")

TERMS = Contract(
    reader=V13,
    producer=V12,
    waived=("attention_isa", "environment.VLLM_X"),
    reason="equal on the golden prompts",
    approved_by="ada",
    approved_ms=1_767_322_000_000,
    ends_ms=1_767_922_000_000,
)

ASKED = TurnAsked(
    turn=TURN,
    tools='[{"type":"function","name":"get_weather","parameters":{"type":"object"}}]',
    tool_choice='"auto"',
    text_format="",
    instructions="be brief \x00",
    parallel_tool_calls=False,
)

PINNED = TurnPinned(
    turn=TURN,
    attempt=2,
    plan=PlanKind.REBUILD,
    reason=f"revision changed from {V12}: replay 96 tokens",
    revision=V13,
    engine=BOOT,
    offer=KV,
    carry_tokens=True,
)

GOLDEN: dict[str, Event] = {
    event.name: event
    for event in (
        ConversationCreated(
            alias="production", on_upgrade=OnUpgrade.STAY, metadata={"topic": "caf\u00e9 \x00 \uf8ff"}
        ),
        MessageAccepted(item=ItemId("msg_01"), role=Role.USER, text="Ol\u00e1 \x00 \ud800 \U0001f600"),
        ConversationUpdated(metadata={"topic": "\u00fcber \x00"}),
        ConversationDeleted(),
        ItemDeleted(item=ItemId("msg_01")),
        ResponseDeleted(turn=TURN),
        TurnStarted(
            turn=TURN,
            items=(ItemId("msg_01"), ItemId("msg_02")),
            alias="production",
            on_upgrade=OnUpgrade.REPLAY,
            policy_level=PolicyLevel.TENANT,
            sampling=Sampling(max_output_tokens=256, temperature=0.7, top_p=1.0),
            metadata={"trace": "a1"},
            instructions=ItemId("msg_01"),
        ),
        PINNED,
        KvRefused(
            turn=TURN,
            attempt=2,
            engine=BOOT,
            engine_revision=V13,
            refusal=Refusal(
                artifact=KV,
                reason=RefusalReason.REVISION_MISMATCH,
                detail=f"made under {V12}, this engine is {V13}",
                differing=("weights", "adapter"),
                artifact_revision=V12,
                artifact_producer=BootId("boot_00"),
            ),
        ),
        KvRebuilt(turn=TURN, attempt=2, rebuild="rb_01", artifact=KV, revision=V13, producer=BOOT, tokens=96),
        AttemptFailed(turn=TURN, attempt=2, reason="the engine aborted", partial_text="Par\x00\udfff"),
        TurnCompleted(
            turn=TURN,
            attempt=3,
            item=ItemId("msg_03"),
            text="Paris \x00 \ud800",
            finish_reason="stop",
            extends=TurnId("resp_00"),
            prompt_delta=(0, 1, 4_294_967_295),
            output=(49_152,),
            prompt_tokens=99,
            local_tokens=16,
            kv_source=KvSource.REBUILT,
            kv_reason="rebuilt by rb_01",
            requested_revision=V13,
            engine=BOOT,
            engine_revision=V13,
            loaded=Loaded(
                artifact=KV, revision=V13, producer=BOOT, tokens=96, bytes=1_769_472, seconds=0.125
            ),
            published=ArtifactId("kv_" + "1" * 32),
        ),
        ConversationErased(by="key_02", reason="asked for by the person"),
        ConversationForked(
            parent=ConversationId("conv_00"), parent_version=12, turn=TURN, parent_chain="c4" * 32
        ),
        TurnStreamed(
            turn=TURN,
            item=ItemId("msg_03"),
            pieces=(3, 0, 12),
            announced=(V13,),
            lost=True,
            text="Par\x00\udfff",
        ),
        TurnScored(
            turn=TURN,
            attempt=3,
            scores=(
                TokenLogprob(
                    token="Par\x00\ud800", logprob=-0.5, top=(Candidate("Par", -0.5), Candidate("Lon", -2.25))
                ),
            ),
        ),
        FunctionCallAccepted(
            item=ItemId("fc_00"),
            call=CallId("call_00"),
            function="get_weather",
            arguments='{"city": "K\u00f6ln \x00"}',
        ),
        FunctionCallOutputAccepted(item=ItemId("fco_00"), call=CallId("call_00"), output="21 \u00b0C \ud800"),
        ReasoningAccepted(item=ItemId("rs_00"), text="so far \x00"),
        ASKED,
        TurnParsed(
            turn=TURN,
            attempt=3,
            items=(ItemId("rs_01"), ItemId("msg_03"), ItemId("fc_01")),
            parts=(
                Part(kind=ItemKind.REASONING, text="hm \ud800\udfff \x00"),
                Part(kind=ItemKind.MESSAGE, text="I look. \U0001f600"),
                Part(
                    kind=ItemKind.FUNCTION_CALL,
                    text='{"city": "Paris"}',
                    call=CallId("call_01"),
                    function="get_weather",
                ),
            ),
            reasoning_tokens=4,
        ),
        TurnFailed(turn=TURN, code="no_engine", message="No engine serves the revision now."),
        AliasMoved(alias="production", revision=V13, previous=V12, by="key_01"),
        AdapterServed(boot=BOOT, model="legal", adapter="ad" * 32, revision=V13),
        AdapterWithdrawn(boot=BOOT, model="legal", revision=V13),
        ContractApproved(contract=TERMS.id, terms=TERMS),
        ContractRevoked(contract=TERMS.id, by="key_01"),
        TenantPolicySet(tenant="acme", on_upgrade="stay_strict", previous=None, by="key_01"),
        CanaryRecorded(revision=V13, boot=BOOT, prompt=(1, 2, 49_152), answer=(0, 4_294_967_295)),
        CanaryFailed(
            revision=V13,
            boot=BootId("boot_02"),
            address="http://127.0.0.1:8002",
            compared=16,
            part="answer",
            place=1,
            expected=4_294_967_295,
            got=None,
        ),
        CanaryForgotten(revision=V13, by="key_01", reason="a broken card"),
        EngineRegistered(boot=BOOT, revision=V13, address="http://127.0.0.1:8001", role="both"),
        RolloutStarted(
            rollout=ROLLOUT,
            alias="production",
            source=V12,
            target=V13,
            strategy=Strategy(
                warm=100,
                warm_tokens_per_s=5000,
                shift=(Share(percent=10, hold_s=300), Share(percent=100, hold_s=60)),
                drain=Drain.UNPINNED,
                limits=Limits(refusals=5, failed_attempts=6, failed_rebuilds=7),
            ),
            by="key_01",
            reason="better at sums",
        ),
        RolloutStepped(
            rollout=ROLLOUT,
            step=3,
            state=RolloutState.DRAINING,
            percent=100,
            engines=(BOOT,),
            by="everturn",
            reason="engines get no new attempts",
        ),
        RolloutPaused(rollout=ROLLOUT, by="everturn", reason="6 failed attempts, more than the limit of 5"),
        RolloutResumed(rollout=ROLLOUT, by="key_01", reason="one bad disk"),
        RolloutAborted(rollout=ROLLOUT, by="key_01", reason="wrong file"),
        RolloutRolledBack(rollout=ROLLOUT, successor=BACK, by="key_01", reason="worse at sums"),
        RolloutDone(rollout=ROLLOUT, by="everturn", reason="the engines of before have drained"),
    )
}

# With what only the newest schema of its kind has a place for.
NEWER: Mapping[tuple[str, int], Event] = {
    (TurnAsked.name, 2): replace(ASKED, labels='{"safety_identifier": "somebody \\u0000"}'),
    (TurnPinned.name, 5): replace(PINNED, rebuild="rb_01"),
}


def golden(name: str, schema_number: int) -> Event:
    return NEWER.get((name, schema_number), GOLDEN[name])
