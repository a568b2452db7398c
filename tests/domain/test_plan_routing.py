"""Which of a revision's engines gets a turn, and when its prompt is prefilled on another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.domain.artifact import BootId
from service.domain.contract import Contract
from service.domain.events import OnUpgrade, PlanKind
from service.domain.plan import (
    Engine,
    EngineRole,
    EngineState,
    History,
    Routing,
    StoredArtifact,
    TurnPlan,
    plan_turn,
)
from service.domain.revision import RevisionDigest
from tests.domain.test_plan import NEW, OLD, engine, stored

HOME = BootId("boot_z")
"""Last by name: only the KV that it holds speaks for it."""
ROUTING = Routing(local_slack=2, split_min_tokens=100)


def plan(
    *fleet: Engine,
    last: RevisionDigest | None = NEW,
    tokens: int = 400,
    new_tokens: int = 50,
    artifacts: Sequence[StoredArtifact] = (),
    **more: Any,
) -> TurnPlan:
    history = History(
        revision=last,
        tokens=tokens,
        same_text=True,
        engine=None if last is None else HOME,
        new_tokens=new_tokens,
    )
    return plan_turn(
        history=history,
        target=NEW,
        policy=OnUpgrade.REPLAY,
        fleet=fleet,
        artifacts=artifacts,
        rebuild_min_tokens=64,
        routing=ROUTING,
        **more,
    )


def chosen(*fleet: Engine, **more: Any) -> str:
    result = plan(*fleet, **more)
    assert result.engine is not None
    return result.engine.boot


def test_the_engine_that_gave_the_last_answer_is_preferred() -> None:
    assert chosen(engine(NEW, "boot_a"), engine(NEW, HOME)) == HOME


def test_it_is_preferred_while_it_is_a_little_busier_and_no_further() -> None:
    assert chosen(engine(NEW, "boot_a", load=1), engine(NEW, HOME, load=3)) == HOME
    assert chosen(engine(NEW, "boot_a", load=1), engine(NEW, HOME, load=4)) == "boot_a"


def test_an_engine_started_anew_in_its_place_is_another_engine() -> None:
    again = engine(NEW, "boot_again", load=1)
    assert chosen(engine(NEW, "boot_a"), again) == "boot_a"


@pytest.mark.parametrize(
    "away", [{"state": EngineState.DRAINING}, {"state": EngineState.GONE}, {"role": EngineRole.PREFILL}]
)
def test_where_it_takes_no_turns_any_more_another_does(away: dict[str, Any]) -> None:
    assert chosen(engine(NEW, "boot_a", load=9), engine(NEW, HOME, **away)) == "boot_a"
    assert chosen(engine(NEW, "boot_a", load=9), engine(NEW, HOME), avoid=(HOME,)) == "boot_a"


def test_after_an_upgrade_its_cache_is_of_no_use() -> None:
    """One boot serves two revisions where they differ in an adapter: each has its own cache there."""
    fleet = (engine(OLD, HOME), engine(NEW, HOME, model="legal"), engine(NEW, "boot_a", model="legal"))
    assert chosen(*fleet, last=OLD) == "boot_a"


def test_on_a_revision_that_has_not_answered_yet_the_engine_that_made_its_longest_kv_is_preferred() -> None:
    made = [
        replace(stored(NEW, 200), producer=HOME),
        replace(stored(NEW, 100), producer=BootId("boot_y")),
        replace(stored(OLD, 900), producer=BootId("boot_x")),
    ]
    fleet = tuple(engine(NEW, boot) for boot in ("boot_a", "boot_x", "boot_y"))
    assert chosen(*fleet, engine(NEW, HOME), last=OLD, artifacts=made) == HOME
    assert chosen(*fleet, engine(NEW, HOME, load=2), last=OLD, artifacts=made) == HOME
    assert chosen(*fleet, engine(NEW, HOME, load=3), last=OLD, artifacts=made) == "boot_a"


PREFILL = engine(NEW, "boot_p", role=EngineRole.PREFILL)
DECODE = engine(NEW, "boot_d", role=EngineRole.DECODE)


def prefilled_on(*fleet: Engine, **more: Any) -> str | None:
    result = plan(*fleet, **more)
    assert result.engine is not None
    return None if result.prefill is None else result.prefill.boot


def test_a_long_prompt_is_prefilled_on_an_engine_that_does_nothing_else() -> None:
    assert prefilled_on(DECODE, PREFILL, last=None, tokens=0, new_tokens=100) == "boot_p"
    assert prefilled_on(DECODE, PREFILL, last=None, tokens=0, new_tokens=99) is None


def test_what_is_stored_or_cached_need_not_be_prefilled() -> None:
    artifacts = (stored(NEW, 350),)
    assert prefilled_on(DECODE, PREFILL, artifacts=artifacts, new_tokens=49) is None
    assert prefilled_on(DECODE, PREFILL, artifacts=artifacts, new_tokens=50) == "boot_p"
    home = engine(NEW, HOME, role=EngineRole.DECODE)
    assert prefilled_on(home, PREFILL, new_tokens=99) is None
    assert prefilled_on(home, PREFILL, new_tokens=100) == "boot_p"


def test_kv_of_another_revision_spares_no_prefill() -> None:
    assert prefilled_on(DECODE, PREFILL, artifacts=(stored(OLD, 400),)) == "boot_p"


def test_the_least_loaded_prefill_engine_is_asked_and_none_that_failed_or_drains() -> None:
    busy = engine(NEW, "boot_0", role=EngineRole.PREFILL, load=1)
    drains = engine(NEW, "boot_1", role=EngineRole.PREFILL, state=EngineState.DRAINING)
    assert prefilled_on(DECODE, PREFILL, busy, drains) == "boot_p"
    assert prefilled_on(DECODE, PREFILL, busy, avoid=(PREFILL.boot,)) == "boot_0"


def test_engines_that_decode_too_prefill_for_themselves() -> None:
    assert prefilled_on(DECODE, engine(NEW, "boot_both")) is None


def test_r3_a_prefill_engine_of_another_revision_is_never_paired() -> None:
    """Case R3."""
    assert prefilled_on(DECODE, engine(OLD, "boot_p", role=EngineRole.PREFILL)) is None


def test_the_history_of_a_rebuild_may_have_to_be_prefilled_after_all() -> None:
    result = plan(DECODE, PREFILL, last=OLD)
    assert (result.kind, result.prefill) == (PlanKind.REBUILD, PREFILL)


def test_what_is_read_under_a_contract_is_not_published_as_this_revision_s() -> None:
    terms = Contract(
        reader=NEW,
        producer=OLD,
        waived=("engine_version",),
        reason="tested",
        approved_by="ada",
        approved_ms=0,
        ends_ms=1,
    )
    result = plan(DECODE, PREFILL, artifacts=(stored(OLD, 10),), contracts=(terms,))
    assert (result.contract, result.prefill) == (terms.id, None)
