"""A turn with a short history and a warm-up of the same: they share one rebuild, or the turn makes the other's needless."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, event, text

from service import rebuild_run_flow, rollout_advance_flow, turn_flow
from service.domain.events import AttemptFailed, KvRebuilt, PlanKind, TurnPinned
from service.domain.plan import RebuildQueue
from service.domain.rollout_events import RolloutId
from service.store import artifacts, rebuilds, rollout_facts
from service.store.rebuilds import Claim, Rebuild, RebuildState
from service.turn_flow import Pinned
from tests.flows.fleet import ACME, NOW, Running, accept, events_of, evidence, pin, published
from tests.flows.rollouts import Scene, scene

LEAST = 500
"""The history has 103 tokens: it is short, and longer than what joining adds."""


@pytest.fixture
def at(conn: Connection) -> Scene:
    return scene(conn)


def warmed(at: Scene) -> tuple[Running, str, RolloutId]:
    """A conversation whose history is queued to be warmed."""
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    return chat, rebuild, rollout


def held(at: Scene, rebuild: str) -> Claim:
    claim = rebuilds.claim(at.conn, rebuild=rebuild, owner="worker", lease_s=60)
    assert claim is not None
    return claim


def moved_on(at: Scene, chat: Running, least: int = LEAST) -> Pinned:
    """Its next turn, on the target."""
    turn = accept(at.conn, conversation=chat.conversation, revision=at.new).turn
    return pin(at.conn, Running(conversation=chat.conversation, turn=turn), rebuild_min_tokens=least)


def row(at: Scene, rebuild: str) -> Rebuild:
    found = rebuilds.find(at.conn, rebuild)
    assert found is not None
    return found


def let_lapse(at: Scene) -> None:
    at.conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))


@contextmanager
def statements(conn: Connection) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(conn.engine, "before_cursor_execute", note)
    yield seen
    event.remove(conn.engine, "before_cursor_execute", note)


def test_a_turn_waits_for_the_rebuild_that_a_worker_is_at(at: Scene) -> None:
    chat, rebuild, _ = warmed(at)
    claim = held(at, rebuild)
    pinned = moved_on(at, chat)
    assert (pinned.pinned.plan, pinned.rebuild, pinned.pinned.rebuild) == (
        PlanKind.REBUILD,
        rebuild,
        rebuild,
    )
    assert (pinned.pinned.offer, pinned.engine.boot) == (None, "boot_b")
    joined = row(at, rebuild)
    assert (joined.turn, joined.attempt, joined.queue) == (
        pinned.pinned.turn,
        1,
        RebuildQueue.INTERACTIVE,
    )
    assert (joined.state, joined.fence, joined.rollout) == (RebuildState.RUNNING, claim.fence, None)


def test_what_the_worker_then_records_is_the_turns_kv(at: Scene) -> None:
    chat, rebuild, _ = warmed(at)
    claim = held(at, rebuild)
    pinned = moved_on(at, chat)
    made = published(pinned.engine)
    told = evidence(pinned.engine, published=made, prompt_tokens=claim.tokens_total)
    assert (
        rebuild_run_flow.record_rebuild(at.conn, claim=claim, evidence=told, engine=pinned.engine, now=NOW)
        is None
    )
    running = Running(conversation=chat.conversation, turn=pinned.pinned.turn)
    [rebuilt] = [one for one in events_of(at.conn, running) if isinstance(one, KvRebuilt)]
    assert (rebuilt.turn, rebuilt.rebuild, rebuilt.artifact) == (running.turn, rebuild, made.artifact)
    assert [one.artifact for one in artifacts.of_conversation(at.conn, ACME, chat.conversation)] == [
        made.artifact
    ]


def test_what_nobody_has_taken_up_is_called_off_by_the_turn_that_prefills_it(at: Scene) -> None:
    chat, rebuild, rollout = warmed(at)
    pinned = moved_on(at, chat)
    assert (pinned.pinned.plan, pinned.rebuild, pinned.pinned.rebuild) == (PlanKind.COLD, None, None)
    found = row(at, rebuild)
    assert (found.state, found.reason) == (
        RebuildState.SUPERSEDED,
        "a turn prefills this history where it decodes",
    )
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.skipped, warmth.running, warmth.failed) == (1, 0, 0)
    assert rollout_advance_flow.look(at.conn, at.at(rollout), at.now).warming == 0


def test_what_a_dead_worker_held_is_called_off_and_its_fence_is_lost(at: Scene) -> None:
    chat, rebuild, _ = warmed(at)
    claim = held(at, rebuild)
    let_lapse(at)
    assert moved_on(at, chat).pinned.plan is PlanKind.COLD
    assert row(at, rebuild).state is RebuildState.SUPERSEDED
    assert not rebuilds.renew(at.conn, rebuild=rebuild, fence=claim.fence, lease_s=60)


def test_a_warm_up_of_what_the_conversation_was_before_is_left_to_itself(at: Scene) -> None:
    chat, rebuild, rollout = warmed(at)
    claim = held(at, rebuild)
    at.talks_on(chat, 40)
    pinned = moved_on(at, chat)
    assert (pinned.pinned.plan, pinned.rebuild) == (PlanKind.COLD, None)
    found = row(at, rebuild)
    assert (found.state, found.queue, found.rollout) == (
        RebuildState.RUNNING,
        RebuildQueue.BACKGROUND,
        rollout,
    )
    assert rebuilds.renew(at.conn, rebuild=rebuild, fence=claim.fence, lease_s=60)


def test_a_warm_up_of_so_little_that_joining_takes_longer_is_left_to_itself(at: Scene) -> None:
    chat, rebuild, _ = warmed(at)
    held(at, rebuild)
    assert moved_on(at, chat, least=10 * LEAST).pinned.plan is PlanKind.COLD
    assert row(at, rebuild).state is RebuildState.RUNNING


def test_the_next_attempt_joins_no_more_what_the_one_before_has_ended(at: Scene) -> None:
    chat, rebuild, _ = warmed(at)
    held(at, rebuild)
    running = Running(conversation=chat.conversation, turn=moved_on(at, chat).pinned.turn)
    failed = AttemptFailed(turn=running.turn, attempt=1, reason="the engine died")
    turn_flow.fail_attempt(
        at.conn, tenant=ACME, conversation=chat.conversation, refusal=None, failed=failed, now=NOW
    )
    again = pin(at.conn, running, rebuild_min_tokens=LEAST)
    assert (again.pinned.attempt, again.pinned.plan, again.rebuild) == (2, PlanKind.COLD, None)


def test_only_a_short_history_that_changes_its_revision_costs_a_look(at: Scene) -> None:
    with statements(at.conn) as usual:
        pin(at.conn, at.asked(at.chat()), rebuild_min_tokens=LEAST)
    assert not [one for one in usual if "rebuilds" in one]
    chat = at.chat()
    with statements(at.conn) as after:
        moved_on(at, chat)
    assert len([one for one in after if "rebuilds" in one]) == 1


def test_every_pin_that_waits_names_its_rebuild_and_no_other_does(at: Scene) -> None:
    chat = at.chat()
    pinned = moved_on(at, chat, least=8)
    found = [one for one in events_of(at.conn, chat) if isinstance(one, TurnPinned)]
    assert [one.rebuild for one in found] == [None, pinned.rebuild]
    assert pinned.rebuild is not None
