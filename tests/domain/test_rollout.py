"""The table of a rollout's life, the share of conversations that it moves, and the step that it takes next."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.errors import Conflict, Internal, InvalidInput
from service.domain.rollout import (
    ACTIVE,
    TRANSITIONS,
    Facts,
    Route,
    Troubles,
    Waiting,
    advance,
    check,
    check_strategy,
    fold,
    held_back,
    next_move,
    place_of,
    target_of,
)
from service.domain.rollout_eta import Warming, eta_s
from service.domain.rollout_events import (
    Drain,
    Limits,
    RolloutDone,
    RolloutId,
    RolloutMove,
    RolloutPaused,
    RolloutState,
    RolloutStepped,
    Share,
)
from tests.domain.rollouts import (
    ABORTED,
    BACK,
    CALM,
    DONE,
    ID,
    OLD,
    PAUSED,
    RESUMED,
    STRATEGY,
    V12,
    V13,
    rollout,
    started,
    stepped,
)

WARMING = stepped(RolloutState.WARMING)
TEN, FIFTY, ALL = (stepped(RolloutState.SHIFTING, percent) for percent in (10, 50, 100))
DRAINING = stepped(RolloutState.DRAINING, 100, OLD)
REACHED = {
    RolloutState.PLANNED: (),
    RolloutState.WARMING: (WARMING,),
    RolloutState.SHIFTING: (WARMING, TEN),
    RolloutState.DRAINING: (ALL, DRAINING),
    RolloutState.DONE: (ALL, DONE),
    RolloutState.PAUSED: (TEN, PAUSED),
    RolloutState.ABORTED: (TEN, ABORTED),
    RolloutState.ROLLED_BACK: (TEN, BACK),
}
MOVES: tuple[RolloutMove, ...] = (WARMING, FIFTY, DRAINING, PAUSED, RESUMED, ABORTED, BACK, DONE)


@pytest.mark.parametrize("state", RolloutState)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move.name} {getattr(move, 'state', '')}")
def test_only_the_table_says_what_may_follow(state: RolloutState, move: RolloutMove) -> None:
    at = rollout(*REACHED[state])
    assert at.state is state
    leads_to = getattr(move, "state", None)
    allowed = TRANSITIONS.get((state, move.name), frozenset())
    if allowed and (leads_to is None or leads_to in allowed):
        check(at, move)
        assert advance(at, move).state in allowed
        return
    with pytest.raises(Conflict, match=f"is {state}"):
        check(at, move)
    with pytest.raises(Internal):
        advance(at, move)


def test_a_conflict_says_what_can_follow() -> None:
    with pytest.raises(Conflict, match="only: aborted, resumed, rolled_back"):
        check(rollout(TEN, PAUSED), PAUSED)
    with pytest.raises(Conflict, match="start another"):
        check(rollout(ABORTED), PAUSED)


@pytest.mark.parametrize("state", sorted(ACTIVE - {RolloutState.PAUSED}))
def test_a_resumed_rollout_is_where_it_was_paused(state: RolloutState) -> None:
    before = rollout(*REACHED[state])
    assert advance(advance(before, PAUSED), RESUMED) == before


def test_a_history_folds_to_where_it_led() -> None:
    folded = fold([started(), WARMING, TEN, PAUSED, RESUMED, ALL, DRAINING])
    assert folded == rollout(WARMING, TEN, PAUSED, RESUMED, ALL, DRAINING)
    assert (folded.state, folded.percent, folded.drained) == (RolloutState.DRAINING, 100, (OLD,))


def test_a_history_of_something_else_is_no_rollout() -> None:
    with pytest.raises(Internal):
        fold([WARMING])
    with pytest.raises(Internal):
        fold([started(), started()])


CHATS = st.text(min_size=1, max_size=40)


def route(percent: int, name: str = "ro_1") -> Route:
    return Route(rollout=RolloutId(name), step=2, percent=percent, source=V12, target=V13)


@given(CHATS, st.integers(0, 100), st.integers(0, 100))
def test_who_has_moved_stays_moved_as_the_share_grows(chat: str, one: int, other: int) -> None:
    less, more = sorted((one, other))
    if target_of(V12, route(less), chat) == V13:
        assert target_of(V12 if more < 100 else V13, route(more), chat) == V13


@given(CHATS)
def test_none_has_moved_at_zero_and_all_at_a_hundred(chat: str) -> None:
    assert target_of(V12, route(0), chat) == V12
    assert target_of(V13, route(100), chat) == V13
    assert target_of(V12, None, chat) == V12


@given(CHATS, st.integers(0, 100))
def test_there_is_no_third_revision(chat: str, percent: int) -> None:
    assert target_of(V12, route(percent), chat) in (V12, V13)


def test_the_share_is_the_one_asked_for() -> None:
    chats = [f"conv_{number}" for number in range(20_000)]
    for percent in (1, 10, 50, 90):
        moved = sum(target_of(V12, route(percent), chat) == V13 for chat in chats)
        assert abs(moved / len(chats) * 100 - percent) < 1.5


def test_not_always_the_same_are_first() -> None:
    chats = [f"conv_{number}" for number in range(2000)]
    first = {chat for chat in chats if place_of(RolloutId("ro_1"), chat) < 10}
    assert first != {chat for chat in chats if place_of(RolloutId("ro_2"), chat) < 10}


def test_a_place_is_the_same_in_every_process_and_release() -> None:
    assert place_of(RolloutId("ro_1"), "conv_1") == pytest.approx(65.72, abs=0.01)


def test_it_warms_first_then_moves_share_by_share_and_drains() -> None:
    at, states, now = rollout(), [], CALM
    for _ in range(6):
        move = next_move(at, now)
        assert not isinstance(move, Waiting)
        at = advance(at, move)
        states.append((at.state, at.percent))
        now = replace(now, now=now.now + timedelta(seconds=60), since=now.now)
    assert states == [
        (RolloutState.WARMING, 0),
        (RolloutState.SHIFTING, 10),
        (RolloutState.SHIFTING, 50),
        (RolloutState.SHIFTING, 100),
        (RolloutState.DRAINING, 100),
        (RolloutState.DONE, 100),
    ]
    assert at.drained == (OLD,)
    assert at.step == 5


def test_without_warming_it_begins_to_move() -> None:
    move = next_move(rollout(warm=0), CALM)
    assert isinstance(move, RolloutStepped)
    assert (move.state, move.percent) == (RolloutState.SHIFTING, 10)


FACTS = st.builds(
    replace,
    st.just(CALM),
    serving=st.booleans(),
    warming=st.integers(0, 1),
    strict=st.integers(0, 1),
    draining=st.integers(0, 1),
    drainable=st.sampled_from([(), (OLD,)]),
    now=st.integers(0, 120).map(lambda seconds: CALM.now + timedelta(seconds=seconds)),
    troubles=st.builds(Troubles, failed_attempts=st.sampled_from([0, 0, 0, 3])),
)


@given(st.lists(st.tuples(FACTS, st.sampled_from([None, None, None, PAUSED, RESUMED, ABORTED, BACK]))))
def test_whatever_it_finds_and_whoever_moves_it_it_goes_one_way(
    found: list[tuple[Facts, RolloutMove | None]],
) -> None:
    at = rollout()
    told: list[object] = [started()]
    for facts, hand in found:
        move = hand or next_move(at, facts)
        try:
            check(at, move) if not isinstance(move, Waiting) else None
        except Conflict:
            assert hand is not None, "what it does by itself is always allowed"
            continue
        if isinstance(move, Waiting):
            continue
        before, at = at, advance(at, move)
        told.append(move)
        assert at.percent >= before.percent
        assert at.step - before.step in (0, 1)
        assert before.state in ACTIVE | {RolloutState.DONE}
    assert fold(told) == at


@pytest.mark.parametrize(
    ("moves", "found", "reason"),
    [
        ((), {"serving": False}, f"no ready engine serves {V13}"),
        ((WARMING,), {"serving": False}, f"no ready engine serves {V13}"),
        ((WARMING,), {"warming": 3}, "3 conversations are still to be warmed"),
        ((TEN,), {"serving": False}, f"no ready engine serves {V13}"),
        ((TEN,), {}, "10 percent is held for another 60 s"),
        ((ALL,), {}, "100 percent is held for another 30 s"),
        ((ALL, DRAINING), {"draining": 2}, "2 attempts still run on engines that drain"),
        ((TEN, PAUSED), {}, "it is paused"),
        ((ABORTED,), {}, "it is aborted"),
    ],
)
def test_what_it_waits_for_is_said(
    moves: tuple[RolloutMove, ...], found: dict[str, Any], reason: str
) -> None:
    waiting = next_move(rollout(*moves), replace(CALM, **found))
    assert isinstance(waiting, Waiting)
    assert waiting.reason.startswith(reason)


@pytest.mark.parametrize("moves", [(), (WARMING,), (TEN,), (ALL,), (ALL, DRAINING)])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("refusals", "3 refusals of KV on the target, more than the limit of 2"),
        ("failed_attempts", "3 failed attempts on the target, more than the limit of 2"),
        ("failed_rebuilds", "3 failed rebuilds on the target, more than the limit of 2"),
    ],
)
def test_it_pauses_by_itself_and_says_which_number_passed_which_limit(
    moves: tuple[RolloutMove, ...], what: str, words: str
) -> None:
    at = rollout(*moves)
    assert not isinstance(next_move(at, replace(CALM, troubles=Troubles(**{what: 2}))), RolloutPaused)
    paused = next_move(at, replace(CALM, troubles=Troubles(**{what: 3})))
    assert paused == RolloutPaused(rollout=ID, by="everturn", reason=words)


def test_a_canary_that_fails_on_the_target_pauses_it_unless_more_are_allowed() -> None:
    facts = replace(CALM, troubles=Troubles(failed_canaries=1))
    paused = next_move(rollout(TEN), facts)
    assert isinstance(paused, RolloutPaused)
    assert paused.reason == "1 failed canaries on the target, more than the limit of 0"
    allowed = rollout(TEN, limits=replace(STRATEGY.limits, failed_canaries=1))
    assert not isinstance(next_move(allowed, facts), RolloutPaused)


@pytest.mark.parametrize(
    ("most", "load", "held"), [(None, 99, False), (3, 3, False), (3, 4, True), (0, 1, True), (3, None, False)]
)
def test_it_warms_as_long_as_some_engine_runs_no_more_than_was_given(
    most: int | None, load: int | None, held: bool
) -> None:
    at = rollout(WARMING, max_engine_load=most)
    facts = replace(CALM, warming=5, least_load=load)
    waiting = next_move(at, facts)
    assert isinstance(waiting, Waiting)
    assert ("held back" in waiting.reason) is held
    assert (held_back(at, facts) is not None) is held


@pytest.mark.parametrize(
    ("strategy", "found", "words"),
    [
        ({"drain": Drain.NEVER}, {}, "as asked"),
        ({}, {"strict": 4}, f"4 conversations are stay_strict on {V12}"),
        ({}, {"shared_by": ("nightly",)}, "other aliases need them: nightly"),
        ({"drain": Drain.ALWAYS}, {"shared_by": ("nightly",)}, "other aliases need them: nightly"),
        ({}, {"drainable": ()}, "there is none that serves only it"),
    ],
)
def test_engines_that_are_needed_are_not_drained(
    strategy: dict[str, Any], found: dict[str, Any], words: str
) -> None:
    later = CALM.now + timedelta(seconds=31)
    done = next_move(rollout(ALL, **strategy), replace(CALM, now=later, **found))
    assert isinstance(done, RolloutDone)
    assert done.reason.endswith(words)


def test_engines_drain_under_strict_conversations_only_where_that_was_asked_for() -> None:
    facts = replace(CALM, now=CALM.now + timedelta(seconds=31), strict=4)
    move = next_move(rollout(ALL, drain=Drain.ALWAYS), facts)
    assert isinstance(move, RolloutStepped)
    assert (move.state, move.engines) == (RolloutState.DRAINING, (OLD,))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"shift": ()}, "shift"),
        ({"shift": (Share(percent=50, hold_s=0),)}, "shift"),
        ({"shift": (Share(percent=50, hold_s=0), Share(percent=50, hold_s=0))}, "shift"),
        ({"shift": (Share(percent=0, hold_s=0), Share(percent=100, hold_s=0))}, "shift"),
        ({"shift": (Share(percent=101, hold_s=0),)}, "shift"),
        ({"shift": tuple(Share(percent=p, hold_s=0) for p in (*range(1, 21), 100))}, "shift"),
        ({"shift": (Share(percent=100, hold_s=-1),)}, "hold_s"),
        ({"warm": -1}, "warm"),
        ({"warm": 1_000_000}, "warm"),
        ({"warm_tokens_per_s": 0}, "warm_tokens_per_s"),
        ({"max_engine_load": -1}, "max_engine_load"),
        ({"limits": Limits(refusals=-1, failed_attempts=0, failed_rebuilds=0)}, "limits"),
        (
            {"limits": Limits(refusals=0, failed_attempts=0, failed_rebuilds=0, failed_canaries=-1)},
            "limits",
        ),
    ],
)
def test_a_strategy_that_cannot_be_followed_is_refused_by_its_field(
    changes: dict[str, Any], param: str
) -> None:
    check_strategy(STRATEGY)
    with pytest.raises(InvalidInput) as refused:
        check_strategy(replace(STRATEGY, **changes))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("moves", "left", "settled", "seconds"),
    [
        ((), 0, 0, None),
        ((WARMING,), 9, 0, None),
        ((WARMING,), 6, 3, 20 + 150),
        ((WARMING,), 0, 3, 150),
        ((TEN,), 0, 0, 50 + 90),
        ((ALL,), 0, 0, 20),
        ((ALL, DRAINING), 0, 0, 0),
        ((TEN, PAUSED), 0, 0, None),
    ],
)
def test_what_is_left_follows_from_pace_and_holds(
    moves: tuple[RolloutMove, ...], left: int, settled: int, seconds: float | None
) -> None:
    facts = replace(CALM, now=CALM.since + timedelta(seconds=10))
    assert eta_s(rollout(*moves), facts, Warming(left=left, settled=settled)) == seconds
