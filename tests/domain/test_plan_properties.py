"""What holds of every plan, whatever the fleet, the stored KV, the contracts and the policy."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.domain.artifact import BootId
from service.domain.contract import Contract
from service.domain.events import OnUpgrade, PlanKind
from service.domain.plan import (
    Engine,
    EngineRole,
    EngineState,
    History,
    Routing,
    WarmUp,
    plan_turn,
    worth_joining,
)
from tests.domain.descriptors import V12, V13, with_kv
from tests.domain.test_plan import engine, stored

REVISIONS = (V12.digest, V13.digest, with_kv(adapter="ee" * 32).digest)
BOOTS = ("boot_a", "boot_b", "boot_c", "boot_d")
NOWHERE = frozenset({PlanKind.WAIT, PlanKind.REFUSE})
COMPUTES = frozenset({PlanKind.COLD, PlanKind.REBUILD})

ENGINES = st.builds(
    engine,
    st.sampled_from(REVISIONS),
    st.sampled_from(BOOTS),
    state=st.sampled_from(EngineState),
    role=st.sampled_from(EngineRole),
    load=st.integers(0, 9),
)
FLEETS = st.lists(ENGINES, max_size=6, unique_by=lambda e: (e.boot, e.revision))
ARTIFACTS = st.builds(
    stored, st.sampled_from(REVISIONS), st.integers(1, 900), st.text("0123456789ab", min_size=8, max_size=8)
)
CONTRACTS = st.builds(
    Contract,
    reader=st.sampled_from(REVISIONS),
    producer=st.sampled_from(REVISIONS),
    waived=st.just(("engine_version",)),
    reason=st.just("tested"),
    approved_by=st.just("ada"),
    approved_ms=st.just(0),
    ends_ms=st.just(1),
).filter(lambda contract: contract.reader != contract.producer)
HISTORIES = st.builds(
    History,
    revision=st.none() | st.sampled_from(REVISIONS),
    tokens=st.integers(0, 900),
    same_text=st.booleans(),
    append_only=st.booleans(),
    engine=st.none() | st.sampled_from(BOOTS).map(BootId),
    new_tokens=st.integers(0, 900),
    same_frame=st.booleans(),
)
WARM_UPS = st.builds(
    lambda total, done: WarmUp(tokens_total=total, tokens_done=min(done, total)),
    st.integers(0, 900),
    st.integers(0, 900),
)
INPUTS = st.fixed_dictionaries(
    {
        "history": HISTORIES,
        "target": st.sampled_from(REVISIONS),
        "policy": st.sampled_from(OnUpgrade),
        "fleet": FLEETS,
        "artifacts": st.lists(ARTIFACTS, max_size=4, unique_by=lambda a: a.artifact),
        "rebuild_min_tokens": st.just(64),
        "contracts": st.lists(CONTRACTS, max_size=2),
        "avoid": st.sets(st.sampled_from(BOOTS).map(BootId), max_size=2),
        "routing": st.builds(Routing, local_slack=st.integers(0, 5), split_min_tokens=st.integers(1, 900)),
        "warm_up": st.none() | WARM_UPS,
    }
)


@given(INPUTS)
def test_kv_of_another_revision_is_only_decoded_from_under_a_contract_in_force(asked: dict[str, Any]) -> None:
    plan = plan_turn(**asked)
    if plan.offer is None or plan.kind is PlanKind.REBUILD:
        return
    [offered] = [a for a in asked["artifacts"] if a.artifact == plan.offer][:1]
    if offered.revision == plan.revision:
        assert plan.contract is None
        return
    [contract] = [c for c in asked["contracts"] if c.id == plan.contract][:1]
    assert (contract.reader, contract.producer) == (plan.revision, offered.revision)


@given(INPUTS)
def test_an_attempt_runs_on_a_ready_engine_of_its_revision_that_may_decode(asked: dict[str, Any]) -> None:
    plan = plan_turn(**asked)
    assert (plan.engine is None) == (plan.kind in NOWHERE)
    if plan.engine is None:
        return
    assert plan.engine in asked["fleet"]
    assert plan.engine.revision == plan.revision
    assert plan.engine.state is EngineState.READY
    assert plan.engine.role is not EngineRole.PREFILL
    assert plan.engine.boot not in asked["avoid"]


@given(INPUTS)
def test_a_prompt_is_prefilled_on_a_ready_prefill_engine_of_the_same_revision_or_where_it_is_decoded(
    asked: dict[str, Any],
) -> None:
    plan = plan_turn(**asked)
    if plan.prefill is None:
        return
    assert plan.engine is not None
    assert plan.prefill.revision == plan.engine.revision == plan.revision
    assert (plan.prefill.state, plan.prefill.role) == (EngineState.READY, EngineRole.PREFILL)
    assert plan.prefill.boot not in asked["avoid"]
    assert plan.contract is None


@given(INPUTS)
def test_a_turn_goes_on_with_the_target_or_where_its_policy_keeps_it_and_says_why(
    asked: dict[str, Any],
) -> None:
    plan = plan_turn(**asked)
    assert plan.reason
    assert plan.revision in (asked["history"].revision, asked["target"])
    assert plan.revision == asked["target"] or asked["policy"] is not OnUpgrade.REPLAY
    assert plan.kind is not PlanKind.REFUSE or asked["policy"] is OnUpgrade.STAY_STRICT
    assert plan.carry_tokens or not (asked["history"].same_text and asked["history"].same_frame)
    assert plan == plan_turn(**asked)


@given(INPUTS, st.sampled_from(("boot_x", "boot_y")))
def test_one_more_engine_of_the_target_makes_no_turn_wait(asked: dict[str, Any], boot: str) -> None:
    before = plan_turn(**asked)
    after = plan_turn(**asked | {"fleet": [*asked["fleet"], engine(asked["target"], boot)]})
    if before.kind not in NOWHERE:
        assert (after.kind, after.revision, after.offer) == (before.kind, before.revision, before.offer)
    elif before.revision == asked["target"]:
        assert after.kind not in NOWHERE


@given(INPUTS)
def test_kv_of_the_target_spares_whatever_would_have_been_computed(asked: dict[str, Any]) -> None:
    own = stored(asked["target"], 400, "kv_ours")
    plan = plan_turn(**asked | {"artifacts": [own, *asked["artifacts"]]})
    if plan.revision == asked["target"]:
        assert plan.kind not in COMPUTES


@given(INPUTS)
def test_the_engine_with_the_kv_is_passed_over_only_where_it_is_much_busier(asked: dict[str, Any]) -> None:
    plan = plan_turn(**asked)
    if plan.engine is None:
        return
    history, slack = asked["history"], asked["routing"].local_slack
    able = [e for e in asked["fleet"] if e.revision == plan.revision and _able(e, asked)]
    least = min(e.load for e in able)
    assert plan.engine.load <= least + slack
    if plan.engine.boot not in (history.engine, *(a.producer for a in asked["artifacts"])):
        assert plan.engine.load == least
        holders = [e for e in able if (e.boot, e.revision) == (history.engine, history.revision)]
        assert all(holder.load > least + slack for holder in holders)


@given(INPUTS)
def test_a_warm_up_turns_nothing_but_a_prefill_on_the_spot_into_a_wait(asked: dict[str, Any]) -> None:
    plan, alone = plan_turn(**asked), plan_turn(**asked | {"warm_up": None})
    if plan == alone:
        return
    history, warm_up = asked["history"], asked["warm_up"]
    assert (alone.kind, plan.kind) == (PlanKind.COLD, PlanKind.REBUILD)
    assert history.revision not in (None, plan.revision)
    assert history.tokens == warm_up.tokens_total < asked["rebuild_min_tokens"]
    assert (plan.engine, plan.offer, plan.contract) == (alone.engine, None, None)


@given(INPUTS)
def test_a_prompt_that_begins_otherwise_waits_for_no_rebuild_and_changes_nothing_else(
    asked: dict[str, Any],
) -> None:
    same, other = (
        plan_turn(**asked | {"history": replace(asked["history"], same_frame=same)}) for same in (True, False)
    )
    assert other.kind is not PlanKind.REBUILD
    if same == other:
        return
    upgraded = asked["history"].revision not in (None, same.revision)
    assert (same.kind in COMPUTES, upgraded) == (True, True)
    assert (other.kind, other.offer, other.carry_tokens) == (PlanKind.FULL_RENDER, None, False)
    assert (other.engine, other.revision) == (same.engine, same.revision)
    assert "instructions or tools" in other.reason


@given(WARM_UPS, st.integers(1, 3000), st.integers(0, 900))
def test_a_warm_up_that_is_worth_joining_is_so_when_it_has_come_further(
    warm_up: WarmUp, least: int, more: int
) -> None:
    total = warm_up.tokens_total
    later = WarmUp(tokens_total=total, tokens_done=min(total, warm_up.tokens_done + more))
    assert worth_joining(later, tokens=total, rebuild_min_tokens=least) or not worth_joining(
        warm_up, tokens=total, rebuild_min_tokens=least
    )


def _able(one: Engine, asked: dict[str, Any]) -> bool:
    decodes = one.role is not EngineRole.PREFILL
    return one.state is EngineState.READY and decodes and one.boot not in asked["avoid"]
