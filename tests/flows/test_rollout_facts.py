"""What a rollout is judged by: whom it warms, whose rebuilds it withdraws, and which engines it leaves alone."""

import pytest
from sqlalchemy import Connection, text

from service import edit_flow, rebuild_flow, rollout_flow, shift_flow
from service.domain.adapter import ServedAdapter, effective
from service.domain.artifact import BootId
from service.domain.events import OnUpgrade
from service.domain.plan import EngineRole
from service.domain.rollout_events import Drain, RolloutState, Share
from service.rollout_advance_flow import IN_FLIGHT
from service.store import rebuilds, rollout_facts
from service.store.rebuilds import RebuildState
from tests.engines.simulated import descriptor
from tests.flows.fleet import ACME, NOW, Running, accept, add_engine, pin
from tests.flows.rollouts import Scene, scene

OLD = BootId("boot_a")


@pytest.fixture
def at(conn: Connection) -> Scene:
    return scene(conn)


def skipped(at: Scene) -> list[str]:
    return list(at.conn.execute(text("SELECT skipped FROM rollout_warmups ORDER BY place")).scalars())


def delete(at: Scene, chat: Running) -> None:
    edit_flow.delete_conversation(
        at.conn, edit_flow.Edit(tenant=ACME, conversation=chat.conversation, head=None, now=NOW)
    )


def test_only_so_many_rebuilds_are_asked_for_at_once(at: Scene) -> None:
    for _ in range(IN_FLIGHT + 2):
        at.chat()
    rollout = at.start(warm=100)
    at.step(rollout)
    rung = at.step(rollout)
    assert len(rung) == IN_FLIGHT
    assert at.step(rollout) == []
    at.rebuilt(rung[0], "kv_" + "0" * 32)
    assert len(at.step(rollout)) == 1


def test_the_more_engines_can_rebuild_the_more_is_asked_for_at_once(at: Scene) -> None:
    for _ in range(2 * IN_FLIGHT + 1):
        at.chat()
    add_engine(at.conn, "b", "boot_c")
    add_engine(at.conn, "b", "boot_d", role=EngineRole.DECODE)
    rollout = at.start(warm=100)
    at.step(rollout)
    assert len(at.step(rollout)) == 2 * IN_FLIGHT


def test_who_is_on_the_target_already_is_not_warmed(at: Scene) -> None:
    turn = accept(at.conn, revision=at.new)
    running = Running(conversation=turn.conversation, turn=turn.turn)
    at.answered(running)
    rollout = at.start(warm=5)
    at.step(rollout)
    assert at.step(rollout) == []
    assert skipped(at) == ["it is on the target already"]


@pytest.mark.parametrize("policy", [OnUpgrade.STAY, OnUpgrade.STAY_STRICT])
def test_who_stays_is_not_warmed(at: Scene, policy: OnUpgrade) -> None:
    at.chat(policy)
    rollout = at.start(warm=5)
    at.step(rollout)
    assert at.step(rollout) == []
    assert skipped(at) == [f"its on_upgrade is {policy}"]


def test_who_was_deleted_is_not_warmed(at: Scene) -> None:
    chat = at.chat()
    delete(at, chat)
    rollout = at.start(warm=5)
    at.step(rollout)
    assert at.step(rollout) == []
    assert skipped(at) == ["it was deleted"]


def test_nothing_is_warmed_for_another_tokenizer(at: Scene) -> None:
    at.chat()
    engine = rollout_flow.NewEngine(
        boot=BootId("boot_t"),
        address="http://127.0.0.1:9",
        role=EngineRole.BOTH,
        descriptor=descriptor("b", tokenizer="other"),
        expected=None,
    )
    target = rollout_flow.register_engine(
        at.conn, engine, allowed_hosts=frozenset({"127.0.0.1"}), lease_s=60, now=NOW
    )
    rollout = at.start(warm=5, target=target)
    at.step(rollout)
    assert at.step(rollout) == []
    assert skipped(at) == ["the text identity differs: its history is rendered anew"]


def test_only_conversations_of_the_alias_are_warmed(at: Scene) -> None:
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.old, on_upgrade=None, by="ada", now=NOW)
    turn = accept(at.conn, alias="nightly")
    at.answered(Running(conversation=turn.conversation, turn=turn.turn))
    rollout = at.start(warm=5)
    at.step(rollout)
    assert rollout_facts.warmth(at.conn, rollout).total == 0


def test_an_engine_that_serves_the_target_too_is_not_drained(at: Scene) -> None:
    """An alias that moves from a base to an adapter on the same engine."""
    adapter = "ad" * 32
    told = [
        ServedAdapter(model="legal", adapter=adapter, revision=effective(descriptor("a"), adapter).digest)
    ]
    rollout_flow.serve_adapters(at.conn, OLD, told, now=NOW)
    rollout = at.start(target=told[0].revision, drain=Drain.ALWAYS)
    at.step(rollout)
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.DONE, 100)
    assert at.states()[OLD] == "ready"
    assert at.at(rollout).reason.endswith("there is none that serves only it")


def test_another_alias_keeps_its_rebuilds_when_this_one_goes_back(at: Scene) -> None:
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.old, on_upgrade=None, by="ada", now=NOW)
    turn = accept(at.conn, alias="nightly")
    at.answered(Running(conversation=turn.conversation, turn=turn.turn))
    rollout_flow.move_alias(at.conn, alias="nightly", revision=at.new, on_upgrade=None, by="ada", now=NOW)
    again = accept(at.conn, conversation=turn.conversation, alias="nightly")
    pinned = pin(at.conn, Running(conversation=turn.conversation, turn=again.turn))
    assert pinned.rebuild is not None
    rollout = at.start()
    shift_flow.abort(at.conn, rollout, by="ada", reason="worse", now=at.now)
    row = rebuilds.find(at.conn, pinned.rebuild)
    assert row is not None
    assert row.state is RebuildState.QUEUED


def test_a_rebuild_that_an_operator_cancelled_has_not_failed(at: Scene) -> None:
    chat = at.chat()
    rollout = at.start(Share(percent=100, hold_s=600))
    at.step(rollout)
    pinned = pin(at.conn, at.asked(chat))
    assert pinned.rebuild is not None
    rebuild_flow.cancel(at.conn, pinned.rebuild, by="ada")
    row = rebuilds.find(at.conn, pinned.rebuild)
    assert row is not None
    assert row.state is RebuildState.FAILED
    at.step(rollout)
    assert at.where(rollout) == (RolloutState.SHIFTING, 100)


def test_deleted_conversations_pin_no_engine(at: Scene) -> None:
    chat = at.chat(OnUpgrade.STAY_STRICT)
    assert rollout_facts.strict_on(at.conn, at.old) == [chat.conversation]
    assert rollout_facts.strict_on(at.conn, at.new) == []
    delete(at, chat)
    assert rollout_facts.strict_on(at.conn, at.old) == []
