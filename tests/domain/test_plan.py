from collections import Counter
from typing import Any

import pytest

from service.domain.artifact import ArtifactId, BootId
from service.domain.events import OnUpgrade, PlanKind, PolicyLevel
from service.domain.plan import (
    Engine,
    EngineRole,
    EngineState,
    History,
    StoredArtifact,
    TurnPlan,
    WarmUp,
    pick_prefill,
    plan_turn,
    resolve_policy,
    worth_joining,
)
from service.domain.revision import RevisionDigest
from tests.domain.descriptors import V12, V13, with_kv

REVISIONS = (V12.digest, V13.digest, with_kv(adapter="sha256:ee").digest)
OLD, NEW = REVISIONS[:2]


def engine(revision: RevisionDigest, boot: str = "", **changes: Any) -> Engine:
    values: dict[str, Any] = {
        "address": "http://127.0.0.1:1",
        "role": EngineRole.BOTH,
        "state": EngineState.READY,
    }
    return Engine(boot=BootId(boot or f"boot_{revision[4:8]}"), revision=revision, **(values | changes))


def stored(revision: RevisionDigest, tokens: int = 100, name: str = "") -> StoredArtifact:
    artifact = ArtifactId(name or f"kv_{revision[4:20]}")
    return StoredArtifact(artifact=artifact, revision=revision, producer=BootId("boot_0"), tokens=tokens)


def plan(
    revision: RevisionDigest | None = OLD,
    target: RevisionDigest = NEW,
    policy: OnUpgrade = OnUpgrade.REPLAY,
    fleet: tuple[Engine, ...] = (engine(OLD), engine(NEW)),
    artifacts: tuple[StoredArtifact, ...] = (stored(OLD),),
    tokens: int = 400,
    same_text: bool = True,
    avoid: tuple[BootId, ...] = (),
) -> TurnPlan:
    return plan_turn(
        history=History(revision=revision, tokens=tokens, same_text=same_text),
        target=target,
        policy=policy,
        fleet=fleet,
        artifacts=artifacts,
        rebuild_min_tokens=64,
        avoid=avoid,
    )


def test_a_first_turn_starts_cold_on_the_target() -> None:
    result = plan(revision=None, artifacts=(), tokens=0)
    assert (result.kind, result.revision, result.offer) == (PlanKind.COLD, NEW, None)


def test_the_same_revision_reuses_its_longest_artifact() -> None:
    best = stored(NEW, 300, "kv_best")
    result = plan(revision=NEW, artifacts=(stored(NEW, 10), best, stored(OLD, 900)))
    assert (result.kind, result.offer) == (PlanKind.REUSE, best.artifact)


def test_without_stored_kv_the_decode_engine_prefills() -> None:
    result = plan(revision=NEW, artifacts=())
    assert result.kind is PlanKind.COLD
    assert result.reason == "same revision; no stored KV"


def test_an_upgrade_replays_through_a_rebuild_and_offers_the_old_handle_to_its_consumer() -> None:
    result = plan()
    assert (result.kind, result.revision, result.offer) == (PlanKind.REBUILD, NEW, stored(OLD).artifact)
    assert "replay 400 tokens" in result.reason


def test_kv_of_the_target_revision_spares_the_rebuild() -> None:
    result = plan(artifacts=(stored(OLD), stored(NEW)))
    assert (result.kind, result.offer) == (PlanKind.REUSE, stored(NEW).artifact)


def test_a_short_history_is_not_worth_a_queue_hop() -> None:
    assert plan(tokens=63).kind is PlanKind.COLD
    assert plan(tokens=64).kind is PlanKind.REBUILD


@pytest.mark.parametrize(
    ("total", "done", "joins"),
    [(1000, 0, True), (400, 0, True), (300, 0, False), (300, 20, True), (999, 0, False), (1001, 0, False)],
)
def test_a_warm_up_is_joined_where_half_of_what_is_left_and_the_way_back_take_less_than_the_whole(
    total: int, done: int, joins: bool
) -> None:
    tokens = 1000 if total > 900 else total
    warm_up = WarmUp(tokens_total=total, tokens_done=done)
    assert worth_joining(warm_up, tokens=tokens, rebuild_min_tokens=1536) is joins


@pytest.mark.parametrize("policy", [OnUpgrade.STAY, OnUpgrade.STAY_STRICT])
def test_staying_decodes_on_the_old_revision_while_it_serves(policy: OnUpgrade) -> None:
    result = plan(policy=policy)
    assert (result.kind, result.revision, result.offer) == (PlanKind.STAY, OLD, stored(OLD).artifact)


def test_stay_replays_once_the_old_revision_is_gone() -> None:
    assert plan(policy=OnUpgrade.STAY, fleet=(engine(NEW),)).kind is PlanKind.REBUILD


def test_stay_strict_refuses_once_the_old_revision_is_gone() -> None:
    result = plan(policy=OnUpgrade.STAY_STRICT, fleet=(engine(NEW),))
    assert (result.kind, result.revision) == (PlanKind.REFUSE, OLD)


@pytest.mark.parametrize("policy", [OnUpgrade.STAY, OnUpgrade.STAY_STRICT])
def test_staying_waits_for_an_engine_that_has_just_failed_rather_than_leave_its_revision(
    policy: OnUpgrade,
) -> None:
    old = engine(OLD)
    result = plan(policy=policy, fleet=(old, engine(NEW)), avoid=(old.boot,))
    assert (result.kind, result.revision) == (PlanKind.WAIT, OLD)


def test_an_engine_that_has_just_failed_is_not_picked() -> None:
    fleet = (engine(NEW, "boot_a"), engine(NEW, "boot_b"))
    chosen = plan(fleet=fleet, avoid=(BootId("boot_a"),)).engine
    assert chosen is not None
    assert chosen.boot == "boot_b"


@pytest.mark.parametrize(
    "other",
    [engine(OLD), engine(NEW, state=EngineState.DRAINING), engine(NEW, role=EngineRole.PREFILL)],
)
def test_no_engine_to_decode_on_means_waiting(other: Engine) -> None:
    result = plan(fleet=(other,))
    assert (result.kind, result.engine) == (PlanKind.WAIT, None)
    assert NEW in result.reason


def test_another_text_identity_means_a_full_render() -> None:
    result = plan(same_text=False)
    assert (result.kind, result.carry_tokens, result.offer) == (PlanKind.FULL_RENDER, False, None)


def test_the_least_loaded_engine_is_picked() -> None:
    fleet = (engine(NEW, "boot_busy", load=3), engine(NEW, "boot_idle", load=1))
    chosen = plan(fleet=fleet).engine
    assert chosen is not None
    assert chosen.boot == "boot_idle"


def test_a_prefill_engine_of_another_revision_is_never_picked() -> None:
    assert pick_prefill((engine(OLD),), NEW) is None
    assert pick_prefill((engine(NEW, role=EngineRole.DECODE),), NEW) is None
    assert pick_prefill((engine(NEW, role=EngineRole.PREFILL),), NEW) is not None


def test_a_rebuild_goes_to_the_engine_that_is_least_busy_by_either_count() -> None:
    """Other rebuilds are no attempts: only the engine itself knows of them."""
    attempts, rebuilds = engine(NEW, "boot_0", load=2, requests=2), engine(NEW, "boot_1", requests=3)
    idle, silent = engine(NEW, "boot_2", requests=0, load=1), engine(NEW, "boot_3")
    for fleet, expected in (
        ((attempts, rebuilds), attempts),
        ((attempts, rebuilds, idle), idle),
        ((idle, silent), silent),
        ((idle, engine(NEW, "boot_4", load=1, requests=9)), idle),
    ):
        assert pick_prefill(fleet, NEW) is expected


def test_rebuilds_that_begin_together_are_spread_over_engines_that_are_equally_busy() -> None:
    fleet = [engine(NEW, f"boot_{number}") for number in range(4)]
    chosen = Counter(pick_prefill(fleet, NEW, rebuild=f"rb_{number}") for number in range(400))
    assert len(chosen) == 4
    assert min(chosen.values()) > 60
    assert pick_prefill(fleet, NEW, rebuild="rb_1") is pick_prefill(fleet[::-1], NEW, rebuild="rb_1")


BASE, LEGAL, STYLE = (
    V12.digest,
    with_kv(adapter="a" * 64).digest,
    with_kv(adapter="b" * 64).digest,
)
ADAPTED = (
    engine(BASE, "boot_a"),
    engine(LEGAL, "boot_a", model="legal"),
    engine(STYLE, "boot_a", model="style"),
)


@pytest.mark.parametrize(("target", "model"), [(BASE, None), (LEGAL, "legal"), (STYLE, "style")])
def test_one_boot_serves_its_base_and_each_adapter_as_a_revision_of_its_own(
    target: RevisionDigest, model: str | None
) -> None:
    chosen = plan(revision=None, target=target, fleet=ADAPTED, artifacts=(), tokens=0).engine
    assert chosen is not None
    assert (chosen.boot, chosen.revision, chosen.model) == ("boot_a", target, model)


@pytest.mark.parametrize(("before", "after"), [(BASE, LEGAL), (LEGAL, STYLE), (STYLE, BASE)])
def test_a_move_to_or_from_an_adapter_is_an_upgrade_like_any_other(
    before: RevisionDigest, after: RevisionDigest
) -> None:
    result = plan(revision=before, target=after, fleet=ADAPTED, artifacts=(stored(before),))
    assert (result.kind, result.revision, result.offer) == (
        PlanKind.REBUILD,
        after,
        stored(before).artifact,
    )
    prefill = pick_prefill(ADAPTED, after)
    assert prefill is not None
    assert prefill.revision == after


def test_a_turn_waits_for_an_adapter_that_no_engine_has_loaded() -> None:
    result = plan(revision=BASE, target=STYLE, fleet=ADAPTED[:2])
    assert (result.kind, result.engine) == (PlanKind.WAIT, None)


def test_a_turn_that_stays_goes_on_with_its_adapter() -> None:
    result = plan(
        revision=LEGAL, target=STYLE, policy=OnUpgrade.STAY, fleet=ADAPTED, artifacts=(stored(LEGAL),)
    )
    assert (result.kind, result.revision) == (PlanKind.STAY, LEGAL)
    assert result.engine is not None
    assert result.engine.model == "legal"


def test_an_adapter_under_two_names_is_asked_for_by_the_same_one_each_time() -> None:
    names = ("law", "legal", "jus")
    fleet = tuple(engine(LEGAL, "boot_a", model=name) for name in names)
    for order in (fleet, fleet[::-1]):
        chosen = plan(revision=None, target=LEGAL, fleet=order, artifacts=(), tokens=0).engine
        assert chosen is not None
        assert chosen.model == "jus"


@pytest.mark.parametrize(
    ("choices", "decided"),
    [
        ((None, None, None, None), (OnUpgrade.REPLAY, PolicyLevel.DEFAULT)),
        ((None, None, None, OnUpgrade.STAY), (OnUpgrade.STAY, PolicyLevel.TENANT)),
        ((None, None, OnUpgrade.REPLAY, OnUpgrade.STAY), (OnUpgrade.REPLAY, PolicyLevel.ALIAS)),
        ((None, OnUpgrade.STAY, OnUpgrade.REPLAY, None), (OnUpgrade.STAY, PolicyLevel.CONVERSATION)),
        ((OnUpgrade.STAY_STRICT, OnUpgrade.STAY, None, None), (OnUpgrade.STAY_STRICT, PolicyLevel.TURN)),
    ],
)
def test_the_most_specific_policy_decides(
    choices: tuple[OnUpgrade | None, ...], decided: tuple[OnUpgrade, PolicyLevel]
) -> None:
    turn, conversation, alias, tenant = choices
    assert resolve_policy(turn=turn, conversation=conversation, alias=alias, tenant=tenant) == decided
