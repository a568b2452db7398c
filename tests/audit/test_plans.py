"""What an auditor asks of one turn or conversation is answered from indexes, whatever the log's length."""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from tests.store.test_query_plans import plan_of

__all__ = ["plan_of"]

OF_ONE_TURN = ("turn_provenance", "attempts", "decisions", "rebuild_cost", "turn_tokens")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM audit.turns WHERE tenant_id = 'acme' AND conversation_id = 'conv_7'",
        "SELECT * FROM audit.chain_breaks WHERE tenant_id = 'acme' AND stream = 'conv_7'",
        "SELECT * FROM audit.alias_history WHERE alias = 'production'",
        "SELECT * FROM audit.tenant_policies WHERE tenant_id = 'acme'",
        "SELECT * FROM audit.engines WHERE engine = 'boot_1'",
        "SELECT * FROM audit.erasures",
        "SELECT * FROM audit.rebuild_cost",
    ],
)
def test_a_hot_question_passes_over_no_log(plan_of: Callable[[str], str], query: str) -> None:
    plan = plan_of(query)
    assert "Seq Scan on events" not in plan, plan


@pytest.mark.parametrize("view", OF_ONE_TURN)
def test_what_is_told_of_one_turn_is_found_by_index(plan_of: Callable[[str], str], view: str) -> None:
    plan = plan_of(f"SELECT * FROM audit.{view} WHERE tenant_id = 'acme' AND turn_id = 'resp_77'")  # noqa: S608
    assert "Seq Scan on events" not in plan, plan


def test_a_page_of_the_widest_view_is_placed_without_making_its_rows(plan_of: Callable[[str], str]) -> None:
    plan = plan_of("SELECT position FROM audit.turn_provenance WHERE position > 7 ORDER BY position LIMIT 5")
    assert "Join" not in plan, plan
    assert "SubPlan" not in plan, plan


def test_no_turn_is_looked_up_for_a_column_that_nobody_asked_for(plan_of: Callable[[str], str]) -> None:
    plan = plan_of("SELECT decode_revision FROM audit.turn_provenance")
    assert "SubPlan" not in plan, plan
    assert "turn.pinned" not in plan, plan


def test_all_turns_are_joined_with_the_few_engines_and_never_sorted(plan_of: Callable[[str], str]) -> None:
    """Sorting or hashing whole turns is what took seconds on a million events."""
    plan = plan_of("SELECT first_divergence FROM audit.turn_provenance")
    assert "uq_events_turn_pinned" in plan
    assert "Merge" not in plan, plan


def test_contracts_are_looked_up_only_where_revisions_differ(
    plan_of: Callable[[str], str], owner_conn: Connection
) -> None:
    """For each turn once more a way through an index was a third of what a million events took."""
    plan_of("SELECT 1")
    query = (
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT first_divergence FROM audit.turn_provenance LIMIT 50"
    )
    lines = owner_conn.execute(text(query)).scalars().all()
    contracts = [line for line in lines if re.search(r" on events completed_\d", line)]
    assert contracts
    assert all("never executed" in line for line in contracts), "\n".join(lines)
