"""Bugs to plant. Of `FOUND`, the simulation must find each; of `HELD`, each takes one of two guards away, and nothing may go wrong."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from service import conversation_flow, shift_flow, turn_planning
from service.api import attempt
from service.api.attempt import Answer, AttemptLost
from service.api.turn_records import TurnRecords
from service.domain import artifact, plan
from service.domain.artifact import RefusalReason
from service.domain.turn import TRANSITIONS, TurnState, advance
from service.store import rebuilds as store_rebuilds
from service.store import turns as store_turns
from service.store.rebuilds import RebuildState
from tests.simulation import rebuild_rows, wire
from tests.simulation.engine import Engine
from tests.simulation.kv_store import KvStore
from tests.simulation.store import event_store, rebuilds
from workers import turn_sweep
from workers.kv_connector import save_planning

Planted = tuple[AbstractContextManager[Any], ...]


def an_engine_reads_kv_of_any_revision() -> Planted:
    return (*the_scheduler_side_does_not_compare(), *the_worker_side_does_not_compare())


def a_damaged_block_is_loaded() -> Planted:
    return (patch.object(Engine, "unfit", lambda *_: None),)


def a_late_worker_may_finish() -> Planted:
    def held(conn: Any, rebuild: str, _fence: int) -> Any:
        row = conn.tables.rebuilds[rebuild]
        return row if row.seen.state in (RebuildState.RUNNING, RebuildState.DONE) else None

    return (patch.object(rebuild_rows, "held", held), *any_attempt_may_go_on())


def any_attempt_may_go_on() -> Planted:
    """Neither the decision, nor the fold, nor an index minds."""

    def lenient(turn: Any, event: Any) -> Any:
        if (turn.state, event.name) in TRANSITIONS:
            return advance(turn, event)
        return replace(turn, state=TurnState.COMPLETED if event.name == "turn.completed" else turn.state)

    return (
        patch("service.domain.decide.check", lambda *_: None),
        patch("service.domain.head.advance", lenient),
        patch("service.domain.conversation.advance", lenient),
        patch.object(event_store, "_claim", lambda *_: None),
    )


def a_request_sent_again_is_a_new_one() -> Planted:
    store, opened = store_turns, store_turns.open_turn
    return (
        patch.object(store, "find_idempotent", lambda *_: None),
        patch.object(
            store, "open_turn", lambda conn, **given: opened(conn, **given | {"idempotency_key": None})
        ),
    )


def a_failed_attempt_publishes() -> Planted:
    """And its engine what it had computed when it was left."""
    lost = TurnRecords.record_lost

    async def record_lost(self: TurnRecords, job: Any, attempt: Any, failure: AttemptLost) -> None:
        await lost(self, job, attempt, failure)
        await self.record_published(job, attempt)

    every = save_planning.PUBLISHABLE | {"FINISHED_ABORTED"}
    return (
        patch.object(save_planning, "PUBLISHABLE", every),
        patch.object(TurnRecords, "record_lost", record_lost),
    )


def the_text_of_two_attempts_is_joined() -> Planted:
    run, said = attempt.run_attempt, dict[str, str]()

    async def joined(http: Any, tried: Any, *rest: Any) -> Answer:
        try:
            answer = await run(http, tried, *rest)
        except AttemptLost as lost:
            said[tried.pinned.turn] = lost.text
            raise
        before = said.get(tried.pinned.turn, "")
        return replace(answer, completed=replace(answer.completed, text=before + answer.completed.text))

    return (patch("service.api.turn_loop.run_attempt", joined),)


def orphans_are_left() -> Planted:
    return (patch.object(turn_sweep, "settle_orphans", lambda *_, **__: []),)


def nobody_rings_again() -> Planted:
    return (patch.object(store_rebuilds, "stalled", lambda *_, **__: []),)


def a_completed_turn_stays_open() -> Planted:
    return (patch.object(store_turns, "close_turn", lambda *_, **__: None),)


def ids_are_carried_to_another_tokenizer() -> Planted:
    return (patch.object(turn_planning, "same_text", lambda *_: True),)


def a_rollout_does_not_move_its_alias() -> Planted:
    return (patch.object(shift_flow, "_lead", lambda *_, **__: None),)


FOUND: tuple[Callable[[], Planted], ...] = (
    an_engine_reads_kv_of_any_revision,
    a_damaged_block_is_loaded,
    a_late_worker_may_finish,
    any_attempt_may_go_on,
    a_request_sent_again_is_a_new_one,
    a_failed_attempt_publishes,
    the_text_of_two_attempts_is_joined,
    orphans_are_left,
    nobody_rings_again,
    a_completed_turn_stays_open,
    ids_are_carried_to_another_tokenizer,
    a_rollout_does_not_move_its_alias,
)


def the_scheduler_side_does_not_compare() -> Planted:
    return (patch.object(artifact, "refused_by_contract", lambda *_, **__: None),)


def the_worker_side_does_not_compare() -> Planted:
    """Where nobody forges blocks: of a forged one, the worker side alone sees the header."""
    look = Engine.unfit

    def lenient(self: Engine, *given: Any) -> RefusalReason | None:
        found = look(self, *given)
        return None if found is RefusalReason.REVISION_MISMATCH else found

    return (patch.object(Engine, "unfit", lenient), patch.object(KvStore, "forge", lambda *_: False))


def whatever_is_stored_is_offered() -> Planted:
    """Also KV of the revision before, or after a rollback of the one in between."""
    plan_turn = plan.plan_turn

    def offering(*, artifacts: Any, **given: Any) -> Any:
        planned = plan_turn(artifacts=artifacts, **given)
        return replace(planned, offer=artifacts[0].artifact) if artifacts and planned.engine else planned

    return (patch.object(turn_planning, "plan_turn", offering),)


def the_middleware_lets_all_pass() -> Planted:
    return (patch.object(wire, "_mismatch", lambda *_: None),)


def a_running_rebuild_may_be_claimed() -> Planted:
    return (patch.object(rebuilds, "stale", lambda _, row: row.seen.state is RebuildState.RUNNING),)


def a_request_is_run_by_all_who_are_asked() -> Planted:
    accept = conversation_flow.accept_turn
    return (
        patch(
            "service.api.acceptance.accept_turn", lambda *a, **given: replace(accept(*a, **given), fresh=True)
        ),
    )


HELD: tuple[Callable[[], Planted], ...] = (
    the_scheduler_side_does_not_compare,
    the_worker_side_does_not_compare,
    whatever_is_stored_is_offered,
    the_middleware_lets_all_pass,
    a_running_rebuild_may_be_claimed,
    a_request_is_run_by_all_who_are_asked,
)
