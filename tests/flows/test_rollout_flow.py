"""A rollout from start to end, and back, one transaction at a time."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from service import rebuild_run_flow, rollout_command_flow, rollout_flow, shift_flow, turn_flow
from service.domain.adapter import ServedAdapter, effective
from service.domain.artifact import BootId, RefusalReason
from service.domain.errors import Conflict, EnginePinned, InvalidInput, NotFound
from service.domain.events import (
    FLEET,
    AliasMoved,
    AttemptFailed,
    ConversationId,
    KvRefused,
    OnUpgrade,
    PlanKind,
)
from service.domain.evidence import Refusal
from service.domain.revision import RevisionDigest
from service.domain.rollout import place_of
from service.domain.rollout_events import Drain, RolloutId, RolloutState, Share
from service.store import artifacts, event_store, fleet, rebuild_listing, rebuilds, rollout_facts
from service.store.rebuilds import RebuildState
from service.turn_flow import NotPinned
from tests.engines.simulated import descriptor
from tests.flows.fleet import (
    ACME,
    NOW,
    Running,
    accept,
    add_engine,
    completed,
    new_id,
    pin,
    plan,
    published,
)
from tests.flows.rollouts import Scene, scene

OLD, NEW = BootId("boot_a"), BootId("boot_b")
Withdraw = Callable[..., tuple[ConversationId, ...]]
HALF = (Share(percent=50, hold_s=60), Share(percent=100, hold_s=0))
KV = "kv_" + "b" * 32
YEARS_S = 20 * 365 * 86400


@pytest.fixture
def at(conn: Connection) -> Scene:
    return scene(conn)


def back(at: Scene, rollout: RolloutId) -> RolloutId:
    successor = RolloutId(new_id("ro_"))
    rollout_command_flow.roll_back(at.conn, rollout, successor, by="ada", reason="worse", now=at.now)
    return successor


def stored(at: Scene, chat: ConversationId, boot: BootId) -> str:
    """KV of the conversation, as that engine made it."""
    engine = next(e for e in fleet.live_engines(at.conn) if e.boot == boot)
    made = published(engine)
    artifacts.record(at.conn, tenant=ACME, conversation=chat, published=made, now=NOW)
    return made.artifact


def among(chats: list[Running], rollout: RolloutId, *, moved: bool) -> Running:
    """One that is among the first half, or is not."""
    return next(chat for chat in chats if (place_of(rollout, chat.conversation) < 50) is moved)


def test_it_moves_the_alias_in_steps_and_drains_the_engines_of_before(at: Scene) -> None:
    rollout = at.start(*HALF)
    assert (at.where(rollout), at.alias()) == ((RolloutState.PLANNED, 0), at.old)
    at.step(rollout)
    assert (at.where(rollout), at.alias()) == ((RolloutState.SHIFTING, 50), at.old)
    at.step(rollout, later_s=59)
    assert at.where(rollout) == (RolloutState.SHIFTING, 50)
    assert at.at(rollout).waiting == "50 percent is held for another 1 s"
    at.step(rollout, later_s=1)
    assert (at.where(rollout), at.alias()) == ((RolloutState.SHIFTING, 100), at.new)
    at.step(rollout)
    assert at.states() == {OLD: "draining", NEW: "ready"}
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.DONE, 100)
    assert at.names(rollout) == ["rollout.started", *["rollout.stepped"] * 3, "rollout.done"]
    assert at.step(rollout) == []
    assert len(at.names(rollout)) == 5, "it has ended"


def test_the_alias_is_moved_by_an_event_that_names_the_rollout_and_keeps_its_policy(at: Scene) -> None:
    rollout_flow.move_alias(
        at.conn, alias="production", revision=at.old, on_upgrade=OnUpgrade.STAY, by="ada", now=NOW
    )
    rollout = at.start()
    at.step(rollout)
    history = event_store.read(at.conn, tenant=FLEET, stream="alias/production")
    last = history[-1]
    assert isinstance(last, AliasMoved)
    assert (last.previous, last.revision, last.by) == (at.old, at.new, f"everturn ({rollout})")
    found = fleet.find_alias(at.conn, "production")
    assert found is not None
    assert found.on_upgrade is OnUpgrade.STAY


def test_in_between_each_conversation_is_planned_for_its_own_side(at: Scene) -> None:
    chats = [at.chat() for _ in range(12)]
    rollout = at.start(*HALF)
    at.step(rollout)
    moved = pin(at.conn, at.asked(among(chats, rollout, moved=True))).pinned
    stayed = pin(at.conn, at.asked(among(chats, rollout, moved=False))).pinned
    assert (moved.revision, moved.rollout, moved.rollout_step) == (at.new, rollout, 1)
    assert (stayed.revision, stayed.rollout, stayed.rollout_step) == (at.old, rollout, 1)


def test_a_turn_for_a_revision_by_name_is_no_business_of_the_rollout(at: Scene) -> None:
    rollout = at.start(*HALF)
    at.step(rollout)
    for revision in (at.old, at.new):
        turn = accept(at.conn, revision=revision)
        pinned = pin(at.conn, Running(conversation=turn.conversation, turn=turn.turn)).pinned
        assert (pinned.revision, pinned.rollout) == (revision, None)


def test_without_a_ready_engine_it_waits_and_says_so(at: Scene) -> None:
    rollout_flow.drain_engine(at.conn, NEW)
    rollout = at.start(warm=5)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.PLANNED, 0)
    assert at.at(rollout).waiting == f"no ready engine serves {at.new}"
    add_engine(at.conn, "b", "boot_c")
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.WARMING, 0)


def test_an_alias_is_in_one_rollout_at_a_time(at: Scene) -> None:
    rollout = at.start()
    third = add_engine(at.conn, "c", "boot_c")
    with pytest.raises(Conflict, match=f"is in rollout {rollout}: abort it"):
        at.start(target=third)


def test_a_rollout_that_leads_nowhere_is_refused(at: Scene) -> None:
    with pytest.raises(InvalidInput, match="already"):
        at.start(target=at.old)
    with pytest.raises(NotFound):
        at.start(target=RevisionDigest("rev_" + "0" * 64))
    rollout = at.start()
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)


def test_moving_the_alias_by_hand_is_refused_and_by_force_aborts_the_rollout(at: Scene) -> None:
    rollout = at.start(*HALF)
    at.step(rollout)
    third = add_engine(at.conn, "c", "boot_c")

    def move(**more: bool) -> None:
        rollout_flow.move_alias(
            at.conn, alias="production", revision=third, on_upgrade=None, by="bob", now=at.now, **more
        )

    with pytest.raises(Conflict, match="force=true"):
        move()
    assert at.alias() == at.old
    move(force=True)
    assert at.alias() == third
    assert at.where(rollout)[0] is RolloutState.ABORTED


def test_an_aborted_rollout_leaves_every_conversation_where_it_was(at: Scene) -> None:
    rollout = at.start(*HALF)
    at.step(rollout)
    shift_flow.abort(at.conn, rollout, by="ada", reason="wrong file", now=at.now)
    for _ in range(8):
        pinned = pin(at.conn, at.asked(at.chat())).pinned
        assert (pinned.revision, pinned.rollout) == (at.old, None)


def test_a_rollout_aborted_after_the_alias_moved_takes_alias_and_engines_back(at: Scene) -> None:
    rollout = at.start()
    at.step(rollout)
    at.step(rollout)
    assert (at.alias(), at.states()[OLD]) == (at.new, "draining")
    shift_flow.abort(at.conn, rollout, by="ada", reason="worse", now=at.now)
    assert (at.alias(), at.states()[OLD]) == (at.old, "ready")


def test_a_paused_rollout_takes_no_step_and_begins_its_hold_anew(at: Scene) -> None:
    rollout = at.start(*HALF)
    at.step(rollout)
    rollout_command_flow.pause(at.conn, rollout, by="ada", reason="lunch", now=at.now)
    at.step(rollout, later_s=600)
    assert at.where(rollout) == (RolloutState.PAUSED, 50)
    rollout_command_flow.resume(at.conn, rollout, by="ada", reason="fed", now=at.now)
    at.step(rollout, later_s=59)
    assert at.where(rollout) == (RolloutState.SHIFTING, 50)
    at.step(rollout, later_s=1)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)


def test_conversations_are_warmed_the_latest_first_and_skipped_for_a_reason(at: Scene) -> None:
    first, second, third = at.chat(), at.chat(), at.chat()
    rollout = at.start(warm=2)
    at.step(rollout)
    rung = at.step(rollout)
    found = [rebuilds.find(at.conn, rebuild) for rebuild in rung]
    assert [row.conversation for row in found if row] == [third.conversation, second.conversation]
    assert {(row.revision, row.queue, row.rollout, row.offer) for row in found if row} == {
        (at.new, "background", rollout, None)
    }
    assert first.conversation not in {row.conversation for row in found if row}
    assert at.at(rollout).waiting == "2 conversations are still to be warmed"
    for number, rebuild in enumerate(rung):
        at.rebuilt(rebuild, f"kv_{number:032x}")
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.total, warmth.done, warmth.waiting, warmth.running) == (2, 2, 0, 0)
    assert warmth.tokens_done > 0


def test_a_warmed_conversation_needs_no_rebuild_when_its_turn_comes(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    at.rebuilt(rebuild, KV)
    at.step(rollout)
    pinned = pin(at.conn, at.asked(chat)).pinned
    assert (pinned.revision, pinned.plan, pinned.offer) == (at.new, PlanKind.REUSE, KV)


def test_warming_keeps_to_its_pace(at: Scene) -> None:
    for _ in range(4):
        at.chat()
    rollout = at.start(warm=4, pace=1)
    at.step(rollout)
    assert len(at.step(rollout)) == 1, "its first may be longer than a second's tokens"
    assert at.step(rollout, later_s=30) == []
    assert len(at.step(rollout, later_s=100)) == 1


def test_a_resumed_rollout_warms_on_at_its_pace_and_waits_for_nothing_of_before(at: Scene) -> None:
    for _ in range(3):
        at.chat()
    rollout = at.start(warm=3, pace=1)
    at.step(rollout)
    assert len(at.step(rollout)) == 1
    rollout_command_flow.pause(at.conn, rollout, by="ada", reason="lunch", now=at.now)
    at.conn.execute(text("UPDATE rebuilds SET created_at = created_at - interval '1 hour'"))
    at.seconds += 3600
    rollout_command_flow.resume(at.conn, rollout, by="ada", reason="done", now=at.now)
    assert len(at.step(rollout)) == 1
    assert at.step(rollout, later_s=30) == []
    assert len(at.step(rollout, later_s=100)) == 1


def test_what_was_warmed_lately_is_what_ended_since_it_began_or_was_resumed(at: Scene) -> None:
    for _ in range(2):
        at.chat()
    rollout = at.start(warm=2)
    at.step(rollout)
    first, second = at.step(rollout)
    at.rebuilt(first, "kv_" + "1" * 32)
    asked = rollout_facts.lately(at.conn, rollout, seconds=60)
    assert (asked.done, asked.tokens_asked > 0) == (1, True)
    at.conn.execute(
        text(
            "UPDATE rebuilds SET created_at = created_at - interval '1 hour', finished_at = finished_at - interval '1 hour'"
        )
    )
    at.rebuilt(second, "kv_" + "2" * 32)
    lately = rollout_facts.lately(at.conn, rollout, seconds=60)
    assert (lately.done, lately.tokens_asked) == (1, 0)
    assert rollout_facts.lately(at.conn, rollout, seconds=7200).done == 2


def test_warming_is_held_back_while_the_target_s_engines_are_busy_and_says_so(at: Scene) -> None:
    for _ in range(2):
        at.chat()
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.new, on_upgrade=None, by="ada", now=NOW)
    turn = accept(at.conn, alias="nightly")
    running = pin(at.conn, Running(conversation=turn.conversation, turn=turn.turn))
    held = at.start(warm=2, most_load=0)
    at.step(held)
    assert at.step(held) == []
    assert at.at(held).waiting == (
        "2 conversations are still to be warmed; held back: "
        f"the least busy engine of {at.new} has 1 requests under way, more than 0"
    )
    turn_flow.complete_turn(
        at.conn,
        tenant=ACME,
        conversation=turn.conversation,
        refusal=None,
        completed=completed(running),
        now=NOW,
    )
    assert len(at.step(held)) == 2


def test_warming_is_held_back_by_what_the_engine_itself_counts_whoever_asked_it(at: Scene) -> None:
    at.chat()
    fleet.heartbeat(at.conn, boot=BootId("boot_b"), lease_s=60, requests=3)
    held = at.start(warm=1, most_load=2)
    at.step(held)
    assert at.step(held) == []
    assert str(at.at(held).waiting).endswith("has 3 requests under way, more than 2")
    fleet.heartbeat(at.conn, boot=BootId("boot_b"), lease_s=60, requests=2)
    assert len(at.step(held)) == 1


def test_warming_goes_on_up_to_the_load_that_was_given(at: Scene) -> None:
    at.chat()
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.new, on_upgrade=None, by="ada", now=NOW)
    turn = accept(at.conn, alias="nightly")
    pin(at.conn, Running(conversation=turn.conversation, turn=turn.turn))
    rollout = at.start(warm=1, most_load=1)
    at.step(rollout)
    assert len(at.step(rollout)) == 1


def test_what_needs_no_warming_is_passed_over(at: Scene) -> None:
    chat = at.chat()
    stored(at, chat.conversation, NEW)
    rollout = at.start(warm=5)
    at.step(rollout)
    assert at.step(rollout) == []
    assert rollout_facts.warmth(at.conn, rollout).skipped == 1
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)


def test_what_an_aborted_rollout_was_warming_is_not_wanted_any_more(at: Scene) -> None:
    at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    shift_flow.abort(at.conn, rollout, by="ada", reason="wrong file", now=at.now)
    row = rebuilds.find(at.conn, rebuild)
    assert row is not None
    assert (row.state, row.reason) == (RebuildState.SUPERSEDED, f"rollout {rollout} was aborted")


def test_a_turn_takes_over_what_is_being_warmed_for_it(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    turn = accept(at.conn, conversation=chat.conversation, revision=at.new)
    assert pin(at.conn, Running(conversation=chat.conversation, turn=turn.turn)).rebuild == rebuild
    row = rebuilds.find(at.conn, rebuild)
    assert row is not None
    assert (row.state, row.queue, row.turn, row.rollout) == ("queued", "interactive", turn.turn, None)
    at.rebuilt(rebuild, "kv_" + "c" * 32)
    warmth = rollout_facts.warmth(at.conn, rollout)
    assert (warmth.total, warmth.done, warmth.skipped) == (1, 1, 0), "it is as warm as it was to be"


def test_what_a_turn_has_rebuilt_is_not_warmed_beside_it(at: Scene) -> None:
    chat = at.chat()
    turn = accept(at.conn, conversation=chat.conversation, revision=at.new)
    asked = pin(at.conn, Running(conversation=chat.conversation, turn=turn.turn)).rebuild
    rollout = at.start(warm=1)
    at.step(rollout)
    assert at.step(rollout) == []
    skipped = at.conn.execute(text("SELECT skipped FROM rollout_warmups")).scalars().all()
    assert skipped == ["it is being rebuilt already"]
    assert [row.id for row in rebuild_listing.list_newest(at.conn, limit=10)] == [asked]


def fail_attempts(at: Scene, count: int) -> None:
    for _ in range(count):
        pinned = pin(at.conn, at.asked(at.chat()))
        failed = AttemptFailed(turn=pinned.pinned.turn, attempt=pinned.pinned.attempt, reason="CUDA error")
        turn_flow.fail_attempt(
            at.conn,
            tenant=ACME,
            conversation=pinned.head.id,
            refusal=None,
            failed=failed,
            now=at.now,
        )


def test_it_stops_by_itself_when_attempts_fail_on_the_target(at: Scene) -> None:
    rollout = at.start(Share(percent=100, hold_s=600))
    fail_attempts(at, 2)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100), "those were on the source"
    fail_attempts(at, 1)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)
    fail_attempts(at, 1)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.PAUSED, 100)
    assert at.at(rollout).reason == "2 failed attempts on the target, more than the limit of 1"
    rollout_command_flow.resume(at.conn, rollout, by="ada", reason="one bad disk", now=at.now)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100), "it counts from the resumption on"


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (RefusalReason.REVISION_MISMATCH, RolloutState.SHIFTING),
        (RefusalReason.CHECKSUM_MISMATCH, RolloutState.PAUSED),
    ],
)
def test_it_stops_by_itself_when_kv_is_refused_but_not_for_being_of_the_old_revision(
    at: Scene, reason: RefusalReason, state: RolloutState
) -> None:
    rollout = at.start(Share(percent=100, hold_s=600))
    at.step(rollout)
    pinned = pin(at.conn, at.asked(at.chat()))
    refused = KvRefused(
        turn=pinned.pinned.turn,
        attempt=1,
        engine=NEW,
        engine_revision=at.new,
        refusal=Refusal(artifact=KV, reason=reason, detail="d", differing=()),
    )
    failed = AttemptFailed(turn=pinned.pinned.turn, attempt=1, reason="lost")
    turn_flow.fail_attempt(
        at.conn, tenant=ACME, conversation=pinned.head.id, refusal=refused, failed=failed, now=at.now
    )
    at.step(rollout)
    assert at.where(rollout)[0] is state


@pytest.mark.parametrize("ahead_s", [0, YEARS_S])
def test_it_stops_by_itself_when_rebuilds_fail_whatever_the_clock_of_who_started_it(
    at: Scene, ahead_s: float
) -> None:
    at.chat()
    at.seconds = ahead_s
    rollout = at.start(warm=1)
    at.step(rollout)
    [rebuild] = at.step(rollout)
    claim = rebuilds.claim(at.conn, rebuild=rebuild, owner="worker", lease_s=60)
    assert claim is not None
    rebuild_run_flow.fail_rebuild(at.conn, claim=claim, reason="no space left")
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.PAUSED, 0)
    assert at.at(rollout).reason == "1 failed rebuilds on the target, more than the limit of 0"


def test_engines_stay_while_conversations_are_strict_on_them(at: Scene) -> None:
    at.chat(OnUpgrade.STAY_STRICT)
    rollout = at.start()
    at.step(rollout)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.DONE, 100)
    assert at.states()[OLD] == "ready"
    assert "1 conversations are stay_strict" in at.at(rollout).reason


def test_engines_that_another_alias_needs_are_not_drained(at: Scene) -> None:
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.old, on_upgrade=None, by="ada", now=NOW)
    rollout = at.start(drain=Drain.ALWAYS)
    at.step(rollout)
    at.step(rollout)
    assert at.states()[OLD] == "ready"
    assert at.at(rollout).reason.endswith("other aliases need them: nightly")


def test_rolling_back_in_between_returns_all_at_once_to_the_kv_they_had(at: Scene) -> None:
    chats = [at.chat() for _ in range(12)]
    rollout = at.start(*HALF)
    at.step(rollout)
    moved = pin(at.conn, at.asked(among(chats, rollout, moved=True)))
    assert moved.rebuild is not None
    old_kv = stored(at, moved.head.id, OLD)
    successor = back(at, rollout)
    assert at.where(rollout)[0] is RolloutState.ROLLED_BACK
    assert at.where(successor) == (RolloutState.SHIFTING, 100)
    assert at.at(successor).rollout.back_of == rollout
    row = rebuilds.find(at.conn, moved.rebuild)
    assert row is not None
    assert row.state is RebuildState.SUPERSEDED
    assert row.reason == f"rollout {rollout} was rolled back"
    failed = AttemptFailed(turn=moved.pinned.turn, attempt=1, reason="withdrawn")
    turn_flow.fail_attempt(
        at.conn, tenant=ACME, conversation=moved.head.id, refusal=None, failed=failed, now=at.now
    )
    again = pin(at.conn, Running(conversation=moved.head.id, turn=moved.pinned.turn)).pinned
    assert (again.revision, again.plan, again.offer) == (at.old, PlanKind.REUSE, old_kv)
    at.step(successor)
    assert at.where(successor) == (RolloutState.DONE, 100)
    assert at.states() == {OLD: "ready", NEW: "ready"}


def test_rolling_back_what_is_done_undrains_the_engines_of_before(at: Scene) -> None:
    rollout = at.start()
    for _ in range(3):
        at.step(rollout)
    assert (at.where(rollout)[0], at.states()[OLD]) == (RolloutState.DONE, "draining")
    successor = back(at, rollout)
    assert (at.where(successor), at.states()[OLD]) == ((RolloutState.SHIFTING, 100), "ready")
    assert at.alias() == at.old, "an engine of before is ready: nobody waits for the next beat"
    at.step(successor)
    assert at.alias() == at.old


def test_rolling_back_to_engines_that_are_gone_waits_for_one(at: Scene) -> None:
    rollout = at.start()
    for _ in range(3):
        at.step(rollout)
    rollout_flow.retire_engine(at.conn, OLD)
    successor = back(at, rollout)
    at.step(successor)
    assert at.at(successor).waiting == f"no ready engine serves {at.old}"
    assert pin(at.conn, at.asked(at.chat())).pinned.revision == at.new
    add_engine(at.conn, "a", "boot_c")
    at.step(successor)
    assert at.alias() == at.old


def test_what_moved_nobody_is_aborted_not_rolled_back(at: Scene) -> None:
    rollout = at.start(*HALF)
    with pytest.raises(Conflict, match="abort it"):
        back(at, rollout)


def test_a_rollout_cannot_be_rolled_back_once_its_alias_has_moved_on(at: Scene) -> None:
    rollout = at.start()
    for _ in range(3):
        at.step(rollout)
    third = add_engine(at.conn, "c", "boot_c")
    rollout_flow.move_alias(
        at.conn, alias="production", revision=third, on_upgrade=None, by="ada", now=at.now
    )
    with pytest.raises(Conflict, match="has moved on"):
        back(at, rollout)


@pytest.mark.parametrize("withdraw", [rollout_flow.drain_engine, rollout_flow.retire_engine])
def test_r4_the_last_engine_of_strict_conversations_goes_by_force_alone(
    at: Scene, withdraw: Withdraw
) -> None:
    """Case R4."""
    strict, _ = at.chat(OnUpgrade.STAY_STRICT), at.chat()
    with pytest.raises(EnginePinned) as refused:
        withdraw(at.conn, OLD)
    assert refused.value.conversations == (strict.conversation,)
    assert strict.conversation in str(refused.value)
    assert at.states()[OLD] == "ready"
    assert withdraw(at.conn, OLD, force=True) == (strict.conversation,)
    refused_plan = plan(at.conn, at.asked(strict, OnUpgrade.STAY_STRICT))
    rollout_flow.move_alias(
        at.conn, alias="production", revision=at.new, on_upgrade=None, by="ada", now=at.now
    )
    assert isinstance(refused_plan, NotPinned)


def test_r4_another_engine_of_the_revision_lets_the_first_one_go(at: Scene) -> None:
    """Case R4, its twin."""
    at.chat(OnUpgrade.STAY_STRICT)
    add_engine(at.conn, "a", "boot_c")
    assert rollout_flow.retire_engine(at.conn, OLD) == ()


def test_r4_who_is_no_longer_strict_or_deleted_holds_nothing(at: Scene) -> None:
    """Case R4, its twin."""
    chat = at.chat(OnUpgrade.STAY_STRICT)
    pin(at.conn, at.asked(chat, OnUpgrade.REPLAY))
    assert rollout_flow.retire_engine(at.conn, OLD) == ()


def test_r4_a_revision_goes_with_all_its_engines_or_by_force_with_the_list_of_who_is_strict_on_it(
    at: Scene,
) -> None:
    """Case R4, of a revision."""
    strict, _ = at.chat(OnUpgrade.STAY_STRICT), at.chat()
    add_engine(at.conn, "a", "boot_c")
    rollout_flow.move_alias(
        at.conn, alias="production", revision=at.new, on_upgrade=None, by="ada", now=at.now
    )
    with pytest.raises(EnginePinned, match=f"nothing else than {at.old} serves") as refused:
        rollout_flow.retire_revision(at.conn, at.old)
    assert refused.value.conversations == (strict.conversation,)
    assert at.states() == {OLD: "ready", NEW: "ready", "boot_c": "ready"}
    retired = rollout_flow.retire_revision(at.conn, at.old, force=True)
    assert (retired.engines, retired.conversations) == ((OLD, BootId("boot_c")), (strict.conversation,))
    assert at.states() == {OLD: "gone", NEW: "ready", "boot_c": "gone"}


def test_r4_a_revision_that_nobody_is_strict_on_goes_and_again_changes_nothing(at: Scene) -> None:
    at.chat()
    rollout_flow.move_alias(
        at.conn, alias="production", revision=at.new, on_upgrade=None, by="ada", now=at.now
    )
    assert rollout_flow.retire_revision(at.conn, at.old).engines == (OLD,)
    assert rollout_flow.retire_revision(at.conn, at.old).engines == ()


def test_a_revision_that_an_alias_or_a_rollout_needs_is_not_retired_by_force_either(at: Scene) -> None:
    with pytest.raises(Conflict, match="Alias 'production' points at"):
        rollout_flow.retire_revision(at.conn, at.old, force=True)
    at.start()
    with pytest.raises(Conflict, match="or is in a rollout from or to it"):
        rollout_flow.retire_revision(at.conn, at.new, force=True)
    with pytest.raises(NotFound):
        rollout_flow.retire_revision(at.conn, RevisionDigest("rev_" + "0" * 64))


def test_a_revision_of_an_adapter_is_unloaded_and_its_engine_stays(at: Scene) -> None:
    legal = effective(descriptor("b"), "a" * 64).digest
    told = ServedAdapter(model="legal", adapter="a" * 64, revision=legal)
    rollout_flow.serve_adapters(at.conn, NEW, [told], now=NOW)
    with pytest.raises(Conflict, match="served as adapter 'legal' of boot_b: unload it"):
        rollout_flow.retire_revision(at.conn, legal, force=True)
    assert at.states()[NEW] == "ready"
