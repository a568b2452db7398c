"""The life of a turn, one function for each transaction; the caller begins and commits."""

import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from service.domain import decide
from service.domain.artifact import BootId
from service.domain.cuts import Retelling, Told, item_of
from service.domain.errors import Internal, NoEngine
from service.domain.events import (
    AttemptFailed,
    ConversationId,
    KvRefused,
    OnUpgrade,
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
from service.domain.head import Head, LastAnswer, Standing
from service.domain.plan import (
    DEFAULT_ROUTING,
    Engine,
    EngineRole,
    History,
    Routing,
    TurnPlan,
    pick_decode,
    plan_turn,
)
from service.domain.revision import STRIPPED, RevisionDigest, same_text
from service.domain.rollout import Route, target_of
from service.domain.transcript import Transcript
from service.domain.turn import Turn, TurnEvent, TurnState, check_needs_attempt
from service.rebuild_order import NewId, find_warm_up, order_rebuild
from service.store import (
    artifacts,
    contracts,
    fleet,
    heads,
    prompt_size,
    rebuilds,
    rollouts,
    turn_chunks,
    turns,
)
from service.turn_log import continue_turn, given


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
) -> Pinned | NotPinned:
    """Plans and pins the next attempt, and queues the rebuild it needs; never on an engine of `avoid`.

    `head` is given by a transaction that has locked the conversation and knows where it stands.

    Raises:
        FenceLost: the turn has ended, or has an attempt already.
    """
    state = head or heads.load_head(conn, tenant, conversation, for_update=True, turn=turn)
    current = decide.find_turn(state, turn)
    check_needs_attempt(current)
    target, route = _target(conn, current.started, conversation)
    policy, kept = _policy(current.started), _kept(conn, current, target, avoid)
    if kept is not None:
        target, route, policy = kept, None, OnUpgrade.REPLAY
    history = _history(conn, state, target)
    revisions = {target, history.revision} - {None}
    engines = fleet.live_engines(conn, revisions)
    stored = artifacts.of_conversation(conn, tenant, conversation, state.ancestors)
    several = len(revisions.union(one.revision for one in stored)) > 1
    if any(engine.role is EngineRole.PREFILL for engine in engines):
        # A token is a byte at least.
        history = replace(history, new_tokens=prompt_size.new_bytes(conn, tenant, conversation))
    planned = partial(
        plan_turn,
        history=history,
        target=target,
        policy=policy,
        fleet=engines,
        avoid=avoid,
        artifacts=decide.offerable(state, current, stored),
        rebuild_min_tokens=rebuild_min_tokens,
        contracts=contracts.in_force(conn) if several else (),
        routing=routing,
    )
    plan = planned()
    if plan.kind is PlanKind.COLD and history.revision not in (None, plan.revision):
        # Too short to be rebuilt, unless a warm-up is at it.
        plan = planned(warm_up=find_warm_up(conn, state, target))
    if plan.engine is None:
        return NotPinned(reason=plan.reason, final=plan.kind is PlanKind.REFUSE)
    pinned = _pin(plan, plan.engine, turn, current.attempt + 1, route)
    if kept is not None:
        pinned = replace(pinned, reason=f"the attempt before was on it: {pinned.reason}")
    rebuild = order_rebuild(conn, state, pinned, new_id) if plan.kind is PlanKind.REBUILD else None
    pinned = replace(pinned, rebuild=rebuild)
    state = continue_turn(conn, state, [pinned], now)
    split = None if plan.prefill is None else Split(engine=plan.prefill, at_hand_tokens=plan.at_hand_tokens)
    transcript = heads.load_transcript(conn, tenant, conversation) if rebuild is None else None
    return Pinned(
        head=state,
        pinned=pinned,
        engine=plan.engine,
        rebuild=rebuild,
        split=split,
        transcript=transcript,
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
    target, _ = _target(conn, started, state.id)
    history = _history(conn, state, target)
    plan = plan_turn(
        history=history,
        target=target,
        policy=_policy(started),
        fleet=fleet.live_engines(conn, {target, history.revision}),
        avoid=avoid,
        artifacts=(),
        rebuild_min_tokens=sys.maxsize,
    )
    if plan.engine is None:
        raise NoEngine(f"The request can be answered by no engine now: {plan.reason}.")
    return plan.engine, plan.carry_tokens


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


def _policy(started: TurnStarted) -> OnUpgrade:
    """A revision that the client named is gone to, whatever the conversation was answered under before."""
    return started.on_upgrade if started.revision is None else OnUpgrade.REPLAY


def _target(
    conn: Connection, started: TurnStarted, conversation: ConversationId
) -> tuple[RevisionDigest, Route | None]:
    """The revision that the conversation is to be on, and the rollout that had a say in it."""
    if started.revision is not None:
        return started.revision, None
    led = rollouts.route_of(conn, started.alias)
    if led is None:
        raise Internal(
            f"Turn {started.turn} is for alias '{started.alias}', which was there when it was accepted."
        )
    alias, route = led
    return target_of(alias, route, conversation), route


def _kept(
    conn: Connection, turn: Turn, target: RevisionDigest, avoid: Collection[BootId]
) -> RevisionDigest | None:
    """Where the attempt before was on another revision than the target: that one, while an engine serves it.

    What it has said can be gone on from there, in the same words; the alias has the say about the next turn.
    """
    if turn.left is None or turn.left == target:
        return None
    able = [engine for engine in fleet.live_engines(conn, {turn.left}) if engine.boot not in avoid]
    return turn.left if pick_decode(able, turn.left) is not None else None


def _history(conn: Connection, state: Standing, target: RevisionDigest) -> History:
    last = state.last
    if last is None:
        return History(revision=None, tokens=state.window_tokens, same_text=True)
    extended = last.extended if isinstance(last, LastAnswer) else last.extends is not None
    history = History(
        revision=last.engine_revision, tokens=state.window_tokens, same_text=True, engine=last.engine
    )
    same = last.engine_revision == target
    if same and extended:
        return history
    ours = fleet.find_descriptor(conn, target)
    theirs = ours if same else fleet.find_descriptor(conn, last.engine_revision)
    return replace(
        history,
        same_text=same or (theirs is not None and ours is not None and same_text(ours, theirs)),
        # A template that strips reasoning leaves answers without any as they were: the last prompt tells.
        append_only=extended or ours is None or ours.text.history_policy != STRIPPED,
    )


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
