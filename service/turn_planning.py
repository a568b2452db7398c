"""What a turn's next attempt is planned from, as it is stored, and the plan that comes of it; nothing is recorded."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from service import kin
from service.domain import decide
from service.domain.artifact import BootId
from service.domain.errors import Internal
from service.domain.events import ConversationId, OnUpgrade, PlanKind, TurnStarted
from service.domain.head import Head, LastAnswer, Standing
from service.domain.plan import EngineRole, History, Routing, TurnPlan, pick_decode, plan_turn
from service.domain.revision import STRIPPED, RevisionDigest, same_text
from service.domain.rollout import Route, target_of
from service.domain.transcript import Transcript, frame_of
from service.domain.turn import Turn
from service.rebuild_order import find_warm_up
from service.store import artifacts, contracts, fleet, heads, prompt_size, rollouts

Ask = Callable[..., TurnPlan]
"""`plan_turn` with all that is known; what is given beside is known better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    plan: TurnPlan
    route: Route | None
    """The rollout that had a say in it."""
    shared: str | None = None
    """A relative's rebuild, to be waited for in place of one of its own."""
    transcript: Transcript | None = None
    """Where the plan depended on it."""


def plan_next(
    conn: Connection,
    state: Head,
    current: Turn,
    *,
    avoid: Collection[BootId],
    rebuild_min_tokens: int,
    routing: Routing,
) -> Planned:
    """Of a turn that needs an attempt, in a conversation that is locked."""
    target, route = find_target(conn, current.started, state.id)
    policy, kept = policy_of(current.started), _kept(conn, current, target, avoid)
    if kept is not None:
        target, route, policy = kept, None, OnUpgrade.REPLAY
    history = find_history(conn, state, target)
    revisions = {target, history.revision} - {None}
    engines = fleet.live_engines(conn, revisions)
    # Before the first answer nothing is recorded of KV but what an attempt has had prefilled elsewhere.
    begins = state.last is None and not state.ancestors and current.attempt == 0
    stored = [] if begins else artifacts.of_conversation(conn, state.tenant, state.id, state.ancestors)
    several = len(revisions.union(one.revision for one in stored)) > 1
    if any(engine.role is EngineRole.PREFILL for engine in engines):
        # A token is a byte at least.
        history = replace(history, new_tokens=prompt_size.new_bytes(conn, state.tenant, state.id))
    ask = partial(
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
    planned = Planned(plan=ask(), route=route)
    computes = planned.plan.kind in (PlanKind.COLD, PlanKind.REBUILD)
    if computes and history.revision not in (None, planned.plan.revision):
        planned = _after_upgrade(
            conn, state, current, planned, history=history, ask=ask, within=rebuild_min_tokens
        )
    if kept is None or planned.plan.engine is None:
        return planned
    reason = f"the attempt before was on it: {planned.plan.reason}"
    return replace(planned, plan=replace(planned.plan, reason=reason))


def _after_upgrade(
    conn: Connection,
    state: Head,
    current: Turn,
    planned: Planned,
    *,
    history: History,
    ask: Ask,
    within: int,
) -> Planned:
    """The history is to be computed: unless the prompt begins otherwise, or somebody is at it or has done it."""
    transcript = heads.load_transcript(conn, state.tenant, state.id)
    if transcript.frame != frame_of(transcript.asked):
        plan = ask(history=replace(history, same_frame=False))
        return replace(planned, plan=plan, transcript=transcript)
    if planned.plan.kind is PlanKind.COLD:
        # Too short to be rebuilt, unless a warm-up is at it.
        plan = ask(warm_up=find_warm_up(conn, state, planned.plan.revision))
        return replace(planned, plan=plan, transcript=transcript)
    found = kin.look(conn, state, planned.plan.revision, within=within)
    if found.artifacts:
        plan = ask(artifacts=decide.offerable(state, current, found.artifacts))
        if plan.kind is not PlanKind.REBUILD:
            return replace(planned, plan=plan, transcript=transcript)
    if found.rebuild is None:
        return planned
    reason = f"{planned.plan.reason}, as the rebuild of {found.rebuild.conversation} does"
    plan = replace(planned.plan, reason=reason, offer=None)
    return replace(planned, plan=plan, shared=found.rebuild.rebuild)


def policy_of(started: TurnStarted) -> OnUpgrade:
    """A revision that the client named is gone to, whatever the conversation was answered under before."""
    return started.on_upgrade if started.revision is None else OnUpgrade.REPLAY


def find_target(
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


def find_history(conn: Connection, state: Standing, target: RevisionDigest) -> History:
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
