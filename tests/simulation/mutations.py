"""Bugs to plant. Of `FOUND`, the simulation must find each; of `HELD`, each takes one of two guards away, and nothing may go wrong."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from service import conversation_flow, shift_flow
from service.api import attempt, prefill_split
from service.api.attempt import Answer, AttemptLost, Handed
from service.api.prefill_split import PrefillSplit
from service.api.turn_records import TurnRecords
from service.domain import artifact, plan, revision
from service.domain.artifact import RefusalReason
from service.domain.errors import EngineFailed, RevisionMismatch
from service.domain.events import KvSource
from service.domain.plan import EngineRole
from service.domain.turn import TRANSITIONS, TurnState, advance
from service.store import rebuilds as store_rebuilds
from service.store import turns as store_turns
from service.store.rebuilds import RebuildState
from tests.simulation import rebuild_rows, wire
from tests.simulation.engine import Engine
from tests.simulation.kv_store import KvStore
from tests.simulation.scenario import Scenario, parted, stormy
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
    return _wherever_named(revision.same_text, lambda *_: True)


def a_rollout_does_not_move_its_alias() -> Planted:
    return (patch.object(shift_flow, "_lead", lambda *_, **__: None),)


def what_was_done_is_done_again() -> Planted:
    """By whoever hears of it again: from a broker that was restored from an old copy, say."""
    return (patch.object(rebuilds, "stale", lambda _, row: row.seen.state is RebuildState.DONE),)


def nobody_compares_what_another_engine_prefilled() -> Planted:
    """Any prefill engine is asked, answers, is believed and read from."""
    check = attempt.checked

    def published(*given: Any) -> Any:
        if given[-1].published is None:
            raise EngineFailed("nothing")
        return given[-1].published

    def lenient(tried: Any, prompt: Any, evidence: Any) -> Any:
        try:
            return check(tried, prompt, evidence)
        except RevisionMismatch:
            return evidence

    return (
        *the_split_asks_an_engine_of_another_revision(),
        *the_middleware_lets_all_pass(),
        *an_engine_reads_kv_of_any_revision(),
        patch.object(prefill_split, "_own", published),
        patch.object(attempt, "checked", lenient),
    )


def all_kv_is_said_to_be_prefilled_for_it() -> Planted:
    return (patch.object(attempt, "_source", lambda _, evidence: _said(evidence.loaded)),)


def _said(loaded: Any) -> KvSource:
    return KvSource.NONE if loaded is None else KvSource.PREFILLED


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
    what_was_done_is_done_again,
    nobody_compares_what_another_engine_prefilled,
    all_kv_is_said_to_be_prefilled_for_it,
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

    return _wherever_named(plan_turn, offering)


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


def the_split_asks_an_engine_of_another_revision() -> Planted:
    """Which refuses before it prefills."""
    split = plan._split

    def any_revision(asked: Any, planned: Any) -> Any:
        found = split(asked, planned)
        others = [
            engine
            for engine in asked.able
            if engine.role is EngineRole.PREFILL and engine.revision != planned.revision
        ]
        return replace(found, prefill=others[0]) if found.prefill is not None and others else found

    return (patch.object(plan, "_split", any_revision),)


def the_decoding_engine_is_not_told_what_was_prefilled_for_it() -> Planted:
    """And prefills by itself."""
    return _handing_over(lambda _, handed: replace(handed, offer=None))


def the_decoding_engine_is_told_of_what_was_prefilled_for_others() -> Planted:
    """It compares tokens by itself."""
    made: dict[Any, Any] = {}

    def of_others(job: Any, handed: Handed) -> Handed:
        made[job.conversation] = handed.offer
        theirs = [offer for conversation, offer in made.items() if conversation != job.conversation]
        return replace(handed, offer=theirs[-1]) if theirs else handed

    return _handing_over(of_others)


def _handing_over(otherwise: Callable[[Any, Handed], Handed]) -> Planted:
    hand_over = PrefillSplit.hand_over

    async def handed_over(self: PrefillSplit, job: Any, tried: Any, prompt: Any) -> Handed | None:
        handed = await hand_over(self, job, tried, prompt)
        return handed if handed is None or not handed.made else otherwise(job, handed)

    return (patch.object(PrefillSplit, "hand_over", handed_over),)


HELD: tuple[Callable[[], Planted], ...] = (
    the_scheduler_side_does_not_compare,
    the_worker_side_does_not_compare,
    whatever_is_stored_is_offered,
    the_middleware_lets_all_pass,
    a_running_rebuild_may_be_claimed,
    a_request_is_run_by_all_who_are_asked,
    the_split_asks_an_engine_of_another_revision,
    the_decoding_engine_is_not_told_what_was_prefilled_for_it,
    the_decoding_engine_is_told_of_what_was_prefilled_for_others,
)

SCENARIOS: dict[Callable[[], Planted], Callable[[int], Scenario]] = {
    a_damaged_block_is_loaded: stormy,
    nobody_compares_what_another_engine_prefilled: parted,
    the_decoding_engine_is_told_of_what_was_prefilled_for_others: parted,
    the_split_asks_an_engine_of_another_revision: parted,
    the_decoding_engine_is_not_told_what_was_prefilled_for_it: parted,
}
"""In which they show; any other in those of seeds."""


def _wherever_named(function: Callable[..., Any], put: Callable[..., Any]) -> Planted:
    """Flows are moved from one module to another."""
    return tuple(
        patch.object(module, function.__name__, put)
        for name, module in list(sys.modules.items())
        if name.startswith("service.") and vars(module).get(function.__name__) is function
    )
