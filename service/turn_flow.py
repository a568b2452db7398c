"""The life of a turn, one function for each transaction; the caller begins and commits."""

import sys
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from service.domain import decide
from service.domain.artifact import BootId
from service.domain.cuts import Retelling, Told, item_of
from service.domain.errors import NoEngine
from service.domain.events import (
    AttemptFailed,
    ConversationId,
    KvRebuilt,
    KvRefused,
    PlanKind,
    TenantId,
    TurnCompleted,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.head import Head, Standing
from service.domain.plan import DEFAULT_ROUTING, Engine, Routing, TurnPlan, plan_turn
from service.domain.rollout import Route
from service.domain.transcript import Transcript
from service.domain.turn import Turn, TurnEvent, TurnState, check_needs_attempt
from service.rebuild_order import NewId, order_rebuild
from service.store import artifacts, fleet, heads, rebuilds, turn_chunks, turns
from service.store.rebuilds import Rebuild
from service.turn_log import continue_turn, given
from service.turn_planning import find_history, find_target, plan_next, policy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Another engine of the same revision prefills, where that is worth its while."""

    engine: Engine
    at_hand_tokens: int
    """Of the history: the decoding engine needs nobody for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    head: Head
    pinned: TurnPinned
    engine: Engine
    rebuild: str | None
    """To be rung for and waited for before decoding."""
    split: Split | None = None
    """By whom the prompt may be prefilled."""
    transcript: Transcript | None = None
    """That the prompt is made of; None where there is a rebuild to be waited for first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPinned:
    """Nothing was recorded. `final` where waiting cannot help."""

    reason: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """By a turn that ends without an answer."""

    text: str = ""
    """Of its last attempt: evidence."""
    streamed: TurnStreamed | None = None


def plan_attempt(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    turn: TurnId,
    avoid: frozenset[BootId],
    rebuild_min_tokens: int,
    now: datetime,
    new_id: NewId,
    routing: Routing = DEFAULT_ROUTING,
    head: Head | None = None,
    transcript: Transcript | None = None,
) -> Pinned | NotPinned:
    """Plans and pins the next attempt, and queues the rebuild it needs; never on an engine of `avoid`.

    A transaction that has locked the conversation gives its `head`, and its `transcript` where nothing was said, or computed, before.

    Raises:
        FenceLost: the turn has ended, or has an attempt already.
    """
    state = head or heads.load_head(conn, tenant, conversation, for_update=True, turn=turn)
    current = decide.find_turn(state, turn)
    check_needs_attempt(current)
    planned = plan_next(
        conn, state, current, avoid=avoid, rebuild_min_tokens=rebuild_min_tokens, routing=routing
    )
    plan, rebuild = planned.plan, planned.shared
    if plan.engine is None:
        return NotPinned(reason=plan.reason, final=plan.kind is PlanKind.REFUSE)
    pinned = _pin(plan, plan.engine, turn, current.attempt + 1, planned.route)
    if plan.kind is PlanKind.REBUILD and rebuild is None:
        rebuild = order_rebuild(conn, state, pinned, new_id)
    pinned = replace(pinned, rebuild=rebuild)
    state = continue_turn(conn, state, [pinned], now)
    split = None if plan.prefill is None else Split(engine=plan.prefill, at_hand_tokens=plan.at_hand_tokens)
    if rebuild is None:
        transcript = transcript or planned.transcript or heads.load_transcript(conn, tenant, conversation)
    return Pinned(
        head=state,
        pinned=pinned,
        engine=plan.engine,
        rebuild=rebuild,
        split=split,
        transcript=transcript if rebuild is None else None,
    )


def find_engine(
    conn: Connection,
    state: Standing,
    *,
    started: TurnStarted,
    avoid: frozenset[BootId] = frozenset(),
) -> tuple[Engine, bool]:
    """Where the next turn would run now, and whether it would extend the stored window; nothing is recorded.

    Raises:
        NoEngine: no engine serves what the alias points at.
    """
    plan = _plan_now(conn, state, started, avoid)
    if plan.engine is None:
        raise NoEngine(f"The request can be answered by no engine now: {plan.reason}.")
    return plan.engine, plan.carry_tokens


def missing_engine(conn: Connection, tenant: TenantId, turn: TurnId) -> str | None:
    """Why a turn that waits could have no attempt now; None where it could, or is not there any more."""
    conversation = turns.find_turn(conn, tenant, turn)
    if conversation is None:
        return None
    state = heads.load_head(conn, tenant, conversation, turn=turn)
    if state.erased is not None or turn not in state.turns:
        return None
    plan = _plan_now(conn, state, state.turns[turn].started, frozenset())
    return plan.reason if plan.engine is None else None


def _plan_now(conn: Connection, state: Standing, started: TurnStarted, avoid: frozenset[BootId]) -> TurnPlan:
    target, _ = find_target(conn, started, state.id)
    history = find_history(conn, state, target)
    return plan_turn(
        history=history,
        target=target,
        policy=policy_of(started),
        fleet=fleet.live_engines(conn, {target, history.revision}),
        avoid=avoid,
        artifacts=(),
        rebuild_min_tokens=sys.maxsize,
    )


def take_rebuilt(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    pinned: TurnPinned,
    done: Rebuild,
    now: datetime,
) -> Head:
    """What it made becomes the KV of the turn that waited for it; its own turn was told by who made it.

    Raises:
        FenceLost: the attempt has ended.
    """
    shared = done.turn != pinned.turn
    state = heads.load_head(conn, tenant, conversation, for_update=shared, turn=pinned.turn)
    if not shared or done.artifact is None or done.engine_boot is None:
        return state
    rebuilt = KvRebuilt(
        turn=pinned.turn,
        attempt=pinned.attempt,
        rebuild=done.id,
        artifact=done.artifact,
        revision=done.revision,
        producer=done.engine_boot,
        tokens=min(done.tokens_done, state.window_tokens),
    )
    return continue_turn(conn, state, [rebuilt], now)


def complete_turn(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    refusal: KvRefused | None,
    completed: TurnCompleted,
    now: datetime,
    streamed: TurnStreamed | None = None,
    scored: TurnScored | None = None,
    parsed: TurnParsed | None = None,
    head: Head | None = None,
) -> Turn:
    """Returns the turn as a head has it, without its words.

    `head` is where the conversation stood when the attempt began.

    Raises:
        FenceLost: another attempt took over, or the turn has ended: nothing of this one is accepted.
        VersionConflict: the conversation is not where `head` has it any more: to be tried again without.
    """
    state = head or heads.load_head(conn, tenant, conversation, for_update=True, turn=completed.turn)
    state = continue_turn(
        conn, state, [*given(refusal), *given(streamed), *given(scored), *given(parsed), completed], now
    )
    if completed.dropped_items:
        # No later prompt begins as the windows before this one did.
        artifacts.forget_conversation(conn, tenant, conversation)
    turns.close_turn(conn, tenant=tenant, turn=completed.turn)
    turn = state.turns[completed.turn]
    if turn.pinned is not None and turn.pinned.plan is PlanKind.REBUILD:
        rebuilds.supersede(conn, turn=completed.turn)
    return turn


def fail_attempt(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    refusal: KvRefused | None,
    failed: AttemptFailed,
    now: datetime,
) -> None:
    """Raises: FenceLost."""
    state = heads.load_head(conn, tenant, conversation, for_update=True, turn=failed.turn)
    continue_turn(conn, state, [*given(refusal), failed], now)
    rebuilds.supersede(conn, turn=failed.turn)


def fail_turn(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    turn: TurnId,
    code: str,
    message: str,
    now: datetime,
    said: Said | None = None,
) -> None:
    """Ends a turn whatever it is doing; one that has ended already is left as it is.

    `said` comes from the process that runs it; None where that is another: then it is what was stored of it.
    """
    state = heads.load_head(conn, tenant, conversation, for_update=True, turn=turn)
    current = decide.find_turn(state, turn)
    events: list[TurnEvent] = []
    if current.state in (TurnState.PINNED, TurnState.STARTED):
        said = said or _stored(conn, tenant, turn)
        if current.state is TurnState.PINNED:
            events.append(
                AttemptFailed(turn=turn, attempt=current.attempt, reason=message, partial_text=said.text)
            )
        events += given(said.streamed)
        events.append(TurnFailed(turn=turn, code=code, message=message))
        continue_turn(conn, state, events, now)
    turns.close_turn(conn, tenant=tenant, turn=turn)
    rebuilds.supersede(conn, turn=turn)


def give_up_attempt(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    turn: TurnId,
    reason: str,
    now: datetime,
) -> None:
    """Ends the attempt that is under way, if there is one: another may follow it."""
    state = heads.load_head(conn, tenant, conversation, for_update=True, turn=turn)
    current = decide.find_turn(state, turn)
    if current.state is not TurnState.PINNED:
        return
    text = _stored(conn, tenant, turn).text
    failed = AttemptFailed(turn=turn, attempt=current.attempt, reason=reason, partial_text=text)
    continue_turn(conn, state, [failed], now)
    rebuilds.supersede(conn, turn=turn)


def _stored(conn: Connection, tenant: TenantId, turn: TurnId) -> Said:
    """Of a turn that runs elsewhere, or did."""
    known = turn_chunks.progress(conn, tenant=tenant, turn=turn, since=0)
    if known is None:
        return Said()
    told = Told()
    retelling = Retelling(told, direct=not known.background)
    retelling.tell(known.chunks)
    retelling.take_over()
    streamed = told.cuts.as_event(turn, item_of(turn), None) if known.streamed else None
    return Said(text=told.text, streamed=streamed)


def _pin(plan: TurnPlan, engine: Engine, turn: TurnId, attempt: int, route: Route | None) -> TurnPinned:
    return TurnPinned(
        turn=turn,
        attempt=attempt,
        plan=plan.kind,
        reason=plan.reason,
        revision=plan.revision,
        engine=engine.boot,
        offer=plan.offer,
        carry_tokens=plan.carry_tokens,
        contract=plan.contract,
        prefill=None if plan.prefill is None else plan.prefill.boot,
        rollout=None if route is None else route.rollout,
        rollout_step=None if route is None else route.step,
    )
