"""What must hold of the record, the rows and the KV store, whatever happened; against what clients were told and a cold oracle."""

from collections import Counter
from collections.abc import Iterator, Sequence

from service.domain.artifact import BootId
from service.domain.conversation import Conversation, evolve
from service.domain.events import (
    FLEET,
    AliasMoved,
    ConversationEvent,
    ConversationId,
    Event,
    KvRebuilt,
    KvSource,
    MessageAccepted,
    TurnCompleted,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.head import head_of
from service.domain.rollout import ACTIVE, fold
from service.domain.rollout_events import RolloutState
from service.domain.turn import TurnEvent, TurnState, check
from service.store.rebuilds import RebuildState
from tests.engines.simulated import text_of
from tests.simulation import model
from tests.simulation.actors import TENANT
from tests.simulation.clients import Exchange, Outcome
from tests.simulation.wire import is_of
from tests.simulation.world import World
from workers.kv_connector.block_file import checksum


def violations(world: World) -> Iterator[str]:
    if not world.settled:
        yield f"not settled: {list(world.server.tables.open_turns.values())} {list(world.server.tables.unfinished)}"
    for client in world.clients:
        if client.conversation is not None:
            yield from conversation_violations(world, client.conversation, client.exchanges)
        else:
            yield "a client could not even make its conversation"
    yield from _rebuilds(world)
    yield from _artifacts(world)
    yield from _store(world)
    yield from fleet_violations(world)
    yield from world.loop.errors


def conversation_violations(world: World, name: ConversationId, exchanges: list[Exchange]) -> Iterator[str]:
    rows = world.server.tables.events[TENANT, name]
    positions = [row.position for row in rows]
    if positions != sorted(set(positions)):
        yield f"{name} is not in order"
    state = Conversation(tenant=TENANT, id=name)
    windows: dict[TurnId, tuple[int, ...]] = {}
    for row in rows:
        event = row.event
        assert isinstance(event, ConversationEvent)
        if isinstance(event, TurnEvent):
            # Legal after what was there, whoever appended it.
            check(state.turns[event.turn], event)
        if isinstance(event, TurnCompleted):
            yield from _completed(world, state, event, windows)
        state = evolve(state, event)
    tables = world.server.tables
    if (head_of(state), state) != (tables.heads[TENANT, name], tables.whole[TENANT, name]):
        yield f"what is kept of {name} is not what its events fold to"
    if state.open_turn is not None:
        yield f"{state.open_turn.id} of {name} is still {state.open_turn.state}"
    yield from _exchanges(state, [row.event for row in rows], exchanges)


def _exchanges(state: Conversation, history: Sequence[Event], exchanges: list[Exchange]) -> Iterator[str]:
    said = Counter(event.text for event in history if isinstance(event, MessageAccepted))
    known = [one for one in exchanges if one.told]
    for exchange in exchanges:
        if not exchange.told:
            yield f"{exchange.ask.key} was never told what became of it"
        if said[exchange.ask.text] > 1:
            yield f"{exchange.ask.key} is there {said[exchange.ask.text]} times"
    if sum(isinstance(event, TurnStarted) for event in history) < len(known):
        yield f"{state.id}: more was acknowledged than was started"
    for exchange in known:
        yield from _kept(state, exchange)


def _completed(
    world: World, state: Conversation, event: TurnCompleted, windows: dict[TurnId, tuple[int, ...]]
) -> Iterator[str]:
    """One attempt's answer, by one engine of one revision, equal to a cold prefill of what the record says it saw."""
    turn, engine = state.turns[event.turn], world.engines[event.engine]
    pinned = turn.pinned
    assert pinned is not None
    if (pinned.attempt, pinned.engine) != (event.attempt, event.engine):
        yield f"{event.turn} was answered by {event.engine}, and pinned to {pinned.engine}"
    if len({pinned.revision, event.engine_revision, event.requested_revision, engine.revision}) != 1:
        yield f"{event.turn} has parties of several revisions"
    carried = windows[event.extends] if event.extends is not None else ()
    prompt = (*carried, *event.prompt_delta)
    if not all(map(is_of(engine.own), prompt)):
        yield f"{event.turn} saw token ids of another tokenizer"
    cold = model.answer(engine.own, prompt)[: len(event.output)]
    if event.output != cold or event.text != "".join(map(text_of, event.output)):
        yield f"{event.turn} says '{event.text}', and a cold prefill '{''.join(map(text_of, cold))}'"
    yield from _provenance(world, pinned, event)
    windows[event.turn] = (*prompt, *event.output)


def _provenance(world: World, pinned: TurnPinned, event: TurnCompleted) -> Iterator[str]:
    """Whose KV the answer was made from: two engines are both there, and both of the one revision."""
    loaded = event.loaded
    if (loaded is None) != (event.kv_source is KvSource.NONE):
        yield f"{event.turn} has KV from {event.kv_source}, and loaded {loaded}"
    if loaded is None:
        return
    maker = world.engines[loaded.producer]
    if not loaded.revision == maker.revision == event.engine_revision:
        yield f"{event.turn} was answered from KV of another revision"
    made_for = world.store.attempts[loaded.artifact]
    elsewhere = made_for == prefill_of(event.turn, event.attempt)
    if elsewhere != (event.kv_source is KvSource.PREFILLED):
        yield f"{event.turn} is said to have KV from {event.kv_source}, which {made_for} made"
    if elsewhere and loaded.producer != pinned.prefill:
        yield f"{event.turn} was prefilled on {loaded.producer}, and that was to be {pinned.prefill}"


def prefill_of(turn: TurnId, attempt: int) -> str:
    """What another engine calls it."""
    return f"{turn}.{attempt}.prefill"


def _kept(state: Conversation, exchange: Exchange) -> Iterator[str]:
    if len({(one.outcome, one.turn, one.text) for one in exchange.told}) > 1:
        yield f"{exchange.ask.key} was told {exchange.told}"
    for one in exchange.told:
        turn = None if one.turn is None else state.turns.get(one.turn)
        if turn is None:
            yield f"{one.turn} was acknowledged, and is gone"
        elif one.outcome is Outcome.FAILED:
            if turn.state is not TurnState.FAILED or turn.failed is None or not turn.failed.message:
                yield f"{turn.id} was told to have failed, and is {turn.state}"
        elif turn.completed is None or turn.completed.text != one.text:
            yield f"{turn.id} was told as '{one.text}', and is {turn.state}"


def _rebuilds(world: World) -> Iterator[str]:
    rebuilt = Counter(
        row.event.rebuild
        for rows in world.server.tables.events.values()
        for row in rows
        if isinstance(row.event, KvRebuilt)
    )
    for name, row in world.server.tables.rebuilds.items():
        seen = row.seen
        if seen.state in (RebuildState.QUEUED, RebuildState.RUNNING):
            yield f"rebuild {name} is {seen.state} in the end"
        if (seen.artifact is not None) != (seen.state is RebuildState.DONE):
            yield f"rebuild {name} is {seen.state} with artifact {seen.artifact}"
        if seen.state is RebuildState.FAILED and not seen.reason:
            yield f"rebuild {name} failed for no reason"
        expected = seen.state is RebuildState.DONE and seen.rollout is None
        if rebuilt[name] != expected:
            yield f"rebuild {name} is {seen.state}, and {rebuilt[name]} times in the record"


def _artifacts(world: World) -> Iterator[str]:
    """What a plan may offer was made by an attempt that was accepted, on the engine and revision that its row says.

    Or of a prompt alone, by the engine that was to prefill it: that is no part of an answer, and stays true if the attempt fails.
    """
    events = [row.event for rows in world.server.tables.events.values() for row in rows]
    accepted = {f"{event.turn}.{event.attempt}" for event in events if isinstance(event, TurnCompleted)}
    prefilled = {
        (prefill_of(event.turn, event.attempt), event.prefill)
        for event in events
        if isinstance(event, TurnPinned) and event.prefill is not None
    }
    done = {
        row.seen.artifact for row in world.server.tables.rebuilds.values() if row.seen.artifact is not None
    }
    for rows in world.server.tables.artifacts.values():
        for one in rows:
            published = one.published
            attempt = world.store.attempts.get(published.artifact, "")
            whose = (attempt, published.producer)
            if attempt not in accepted and published.artifact not in done and whose not in prefilled:
                yield f"{published.artifact} of {attempt} is offered, and was never accepted"
            engine = world.engines[BootId(published.producer)]
            if engine.revision != published.revision:
                yield f"{published.artifact} is said to be of {published.revision}, made by {engine.revision}"


def _store(world: World) -> Iterator[str]:
    """Each whole block is what its tokens come to under its revision."""
    known = {descriptor.digest: descriptor for descriptor in (world.old, world.new)}
    for name, (header, payload) in world.store.blocks.items():
        intact = header.key == name[2] and header.revision == name[1]
        if intact and checksum(payload).hexdigest() == header.checksum and name in world.store.covered:
            cold = model.prefill(known[name[1]], world.store.covered[name])[-1]
            if payload != cold:
                yield f"block {header.key[:8]} of {header.producer} holds other KV than its revision's"


def fleet_violations(world: World) -> Iterator[str]:
    tables = world.server.tables
    active = Counter(one.rollout.alias for one in tables.rollouts.values() if one.rollout.state in ACTIVE)
    for alias, times in active.items():
        if times > 1:
            yield f"alias {alias} is in {times} rollouts"
    for name, standing in tables.rollouts.items():
        folded = fold([row.event for row in tables.events[FLEET, f"rollout/{name}"]])
        if folded != standing.rollout:
            yield f"rollout {name} stands where its events do not lead"
    yield from _alias(world)
    if any(load != 0 for load in tables.loads.values()):
        yield f"engines carry what has ended: {tables.loads}"
    pinned = {
        row.event.engine
        for rows in tables.events.values()
        for row in rows
        if isinstance(row.event, TurnPinned)
    }
    for boot in pinned - world.engines.keys():
        yield f"an attempt was pinned to {boot}, which never was"


def _alias(world: World) -> Iterator[str]:
    """It moves from where it is, and ends where its last rollout led, unless a hand moved it later."""
    tables = world.server.tables
    moved = [
        row.event for row in tables.events[FLEET, "alias/production"] if isinstance(row.event, AliasMoved)
    ]
    before = None
    for event in moved:
        if event.previous != before:
            yield f"the alias moved from {event.previous}, where it was not"
        before = event.revision
    if before != tables.aliases["production"].revision:
        yield "the alias is not where its events lead"
    latest = max(tables.rollouts.values(), key=lambda one: one.started_at, default=None)
    by_hand = len(moved) > 1 and moved[-1].by == "op"
    if latest is None or latest.ended_at is None or by_hand:
        return
    rollout = latest.rollout
    if before != (rollout.target if rollout.state is RolloutState.DONE else rollout.source):
        yield f"rollout {rollout.id} is {rollout.state}, and the alias points at {before}"
