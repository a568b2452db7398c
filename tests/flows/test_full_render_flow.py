"""A template that rewrites earlier answers is known from the revision, and what the last prompt was tells whether it did."""

from dataclasses import replace

from sqlalchemy import Connection

from service import rollout_flow
from service.domain.artifact import BootId
from service.domain.events import PlanKind, TurnId
from service.domain.plan import EngineRole
from service.domain.revision import STRIPPED, Descriptor
from service.store import keys
from service.turn_flow import Pinned
from tests.engines.simulated import descriptor
from tests.flows.fleet import ACME, NOW, Running, accept, complete, completed, move_alias, pin

REASON = "rewrites earlier answers: history is rendered anew where it does"


def stripping(weights: str) -> Descriptor:
    made = descriptor(weights)
    return replace(made, text=replace(made.text, history_policy=STRIPPED))


def serve(conn: Connection, weights: str) -> None:
    engine = rollout_flow.NewEngine(
        boot=BootId(f"boot_{weights}"),
        address="http://127.0.0.1:9",
        role=EngineRole.BOTH,
        descriptor=stripping(weights),
        expected=None,
    )
    hosts = frozenset({"127.0.0.1"})
    move_alias(conn, rollout_flow.register_engine(conn, engine, allowed_hosts=hosts, lease_s=60, now=NOW))


def said(conn: Connection, before: Running | None = None, *, extends: TurnId | None = None) -> Running:
    turn = accept(conn, conversation=None if before is None else before.conversation)
    running = Running(conversation=turn.conversation, turn=turn.turn)
    complete(conn, running, completed(pin(conn, running), extends=extends))
    return running


def next_plan(conn: Connection, before: Running) -> Pinned:
    turn = accept(conn, conversation=before.conversation)
    return pin(conn, Running(conversation=turn.conversation, turn=turn.turn))


def test_t2_a_template_that_strips_reasoning_is_planned_as_a_full_render_with_that_reason(
    conn: Connection,
) -> None:
    """Case T2."""
    keys.create_tenant(conn, ACME)
    serve(conn, "a")
    planned = next_plan(conn, said(conn)).pinned
    assert (planned.plan, planned.carry_tokens) == (PlanKind.FULL_RENDER, True)
    assert planned.reason.endswith(REASON)


def test_once_a_prompt_did_extend_the_one_before_there_is_nothing_to_strip(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    serve(conn, "a")
    first = said(conn)
    second = said(conn, first, extends=first.turn)
    assert next_plan(conn, second).pinned.plan is PlanKind.COLD


def test_after_an_upgrade_such_a_history_is_not_rebuilt_from_its_tokens(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    serve(conn, "a")
    chat = said(conn)
    serve(conn, "b")
    planned = next_plan(conn, chat)
    assert (planned.pinned.plan, planned.rebuild) == (PlanKind.FULL_RENDER, None)
