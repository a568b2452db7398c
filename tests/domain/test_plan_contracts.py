"""KV of another revision is offered only under a contract in force between the two, and only where there is no own."""

from dataclasses import replace

from service.domain.contract import Contract
from service.domain.events import OnUpgrade, PlanKind
from service.domain.plan import History, StoredArtifact, TurnPlan, plan_turn
from service.domain.revision import RevisionDigest
from tests.domain.test_plan import NEW, OLD, engine, stored

TERMS = Contract(
    reader=NEW,
    producer=OLD,
    waived=("engine_version",),
    reason="tested",
    approved_by="ada",
    approved_ms=0,
    ends_ms=1,
)


def plan(
    *contracts: Contract,
    artifacts: tuple[StoredArtifact, ...] = (stored(OLD, 90, "kv_short"), stored(OLD, 100, "kv_long")),
    same_text: bool = True,
    policy: OnUpgrade = OnUpgrade.REPLAY,
    revision: RevisionDigest = OLD,
    tokens: int = 400,
) -> TurnPlan:
    return plan_turn(
        history=History(revision=revision, tokens=tokens, same_text=same_text),
        target=NEW,
        policy=policy,
        fleet=(engine(OLD), engine(NEW)),
        artifacts=artifacts,
        rebuild_min_tokens=64,
        contracts=contracts,
    )


def test_under_a_contract_the_longest_artifact_of_the_other_revision_is_decoded_from() -> None:
    result = plan(TERMS)
    assert (result.kind, result.revision, result.offer) == (PlanKind.REUSE, NEW, "kv_long")
    assert result.contract == TERMS.id
    assert OLD in result.reason
    assert TERMS.id in result.reason


def test_a_contract_also_spares_a_short_history_its_prefill() -> None:
    assert plan(TERMS, tokens=10).contract == TERMS.id
    assert plan(tokens=10).kind is PlanKind.COLD


def test_without_a_contract_nothing_is_permitted() -> None:
    result = plan()
    assert (result.kind, result.contract) == (PlanKind.REBUILD, None)


def test_a_contract_is_of_its_reader_and_its_producer_and_one_direction() -> None:
    other = RevisionDigest("rev_" + "0" * 64)
    for terms in (
        replace(TERMS, reader=other),
        replace(TERMS, producer=other),
        replace(TERMS, reader=OLD, producer=NEW),
    ):
        assert plan(terms).contract is None


def test_own_kv_goes_before_another_revisions() -> None:
    result = plan(TERMS, artifacts=(stored(OLD, 900), stored(NEW, 10, "kv_own")))
    assert (result.offer, result.contract) == ("kv_own", None)


def test_on_the_same_revision_a_contract_serves_where_nothing_else_does() -> None:
    result = plan(TERMS, revision=NEW)
    assert (result.kind, result.contract) == (PlanKind.REUSE, TERMS.id)


def test_a_turn_that_stays_reads_its_own_revision() -> None:
    result = plan(TERMS, policy=OnUpgrade.STAY)
    assert (result.revision, result.offer, result.contract) == (OLD, "kv_long", None)


def test_where_the_text_identity_differs_history_is_rendered_anew_and_may_still_match() -> None:
    result = plan(TERMS, same_text=False)
    assert (result.carry_tokens, result.contract, result.offer) == (False, TERMS.id, "kv_long")
    assert not plan(same_text=False).carry_tokens
    assert plan(same_text=False).offer is None
