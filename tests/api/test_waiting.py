"""Turns that wait: for an engine, all at once, and for a rebuild that nobody takes up."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.api.rolling import look, start
from tests.api.stack import Stack, eventually, running_stack

PLACES_KNOWN_S = 4.0
"""Plans are made again at least every three seconds."""


def test_many_turns_wait_for_one_engine_and_all_are_answered(database: str) -> None:
    with running_stack(database, pool_size=4, turn_wait_s=60) as stack:
        engine = stack.start_engine("a", alias=True)
        stack.retire(engine)
        conversations = [stack.conversation() for _ in range(40)]
        with ThreadPoolExecutor(len(conversations)) as pool:
            asked = [pool.submit(stack.post, input="hello", conversation=c) for c in conversations]
            eventually(lambda: all(stack.state(c).open_turn for c in conversations))
            stack.start_engine("a", alias=True)
            answers = [a.result() for a in asked]
        assert {a.status_code for a in answers} == {200}, [a.text for a in answers if a.status_code != 200][
            :1
        ]


def test_a_turn_that_waits_is_told_its_place_in_the_line(stack: Stack) -> None:
    stack.retire(stack.start_engine("a", alias=True))
    conversations = [stack.conversation() for _ in range(3)]
    with ThreadPoolExecutor(len(conversations)) as pool:
        streams = []
        for conversation in conversations:
            streams.append(pool.submit(comments, stack, conversation))
            eventually(partial(open_turn, stack, conversation))
        time.sleep(PLACES_KNOWN_S)
        stack.start_engine("a", alias=True)
        said = ["\n".join(stream.result()) for stream in streams]
    assert "waiting: no ready engine serves rev_" in said[0]
    assert "0 turns are before it" in said[0]
    assert "1 turn is before it" in said[1]
    assert "2 turns are before it" in said[2]


def test_who_reads_a_turn_that_waits_is_told_why_and_its_place(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    stack.retire(engine)
    conversations = [stack.conversation() for _ in range(2)]
    with ThreadPoolExecutor(len(conversations)) as pool, stack.second_server() as other:
        asked = []
        for conversation in conversations:
            asked.append(pool.submit(stack.post, input="hello", conversation=conversation))
            eventually(partial(open_turn, stack, conversation))
        reasons = [why(stack, other, chat) for chat in conversations]
        stack.start_engine("a", alias=True)
        answers = [answer.result().json() for answer in asked]
    for place, reason in ((0, reasons[0]), (1, reasons[1])):
        assert f"no ready engine serves {engine.revision}" in reason
        assert f". {place} turn" in reason
    for answer in answers:
        assert "no ready engine" not in answer["kv"]["reason"]


def test_a_turn_in_the_background_says_that_it_waits_for_a_worker(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    turn = stack.post(input="hello", background=True).json()["id"]
    reason = stack.http.get(f"/v1/responses/{turn}").json()["kv"]["reason"]
    assert reason == "It waits for a worker. 0 turns wait before it."


def test_a_turn_that_has_lost_its_attempt_waits_too_and_says_so(stack: Stack) -> None:
    """To its client, to who reads it elsewhere, in the gauge, and in the rollout."""
    engine, new = stack.start_engine("a", alias=True), stack.start_engine("b")
    rollout = start(stack, new.revision)
    stack.retire(new)
    engine.faults.hold_after = 2
    engine.faults.die_after = 3
    chat = stack.conversation()
    with ThreadPoolExecutor(2) as pool, stack.second_server() as other:
        asked = pool.submit(comments, stack, chat)
        eventually(lambda: engine.faults.hold_after is None)
        stack.retire(engine)
        engine.faults.release.set()
        eventually(lambda: look(stack, rollout)["turns_waiting"] == 1)
        assert look(stack, rollout)["turns_waiting_for"] == {"worker": 0, "next_attempt": 1, "engine": 0}
        assert (waiting_gauge(stack, "next_attempt"), waiting_gauge(stack)) == (1, 0)
        reason = why(stack, other, chat)
        time.sleep(PLACES_KNOWN_S)
        stack.start_engine("a")
        told = "\n".join(asked.result())
    assert reason == (
        "An attempt of it has failed, and it waits for the next. The request can be answered by no engine now: "
        f"no ready engine serves {engine.revision}. 0 turns wait before it."
    )
    assert f"waiting: no ready engine serves {engine.revision}; 0 turns are before it" in told
    assert look(stack, rollout)["turns_waiting"] == 0


def test_a_turn_that_has_lost_its_attempt_is_not_turned_away_by_a_full_line(database: str) -> None:
    with running_stack(database, max_waiting_turns=1, turn_wait_s=60) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 2
        engine.faults.die_after = 3
        first, second = (stack.conversation() for _ in range(2))
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(stack.post, input="hello", conversation=first)]
            eventually(lambda: engine.faults.hold_after is None)
            stack.retire(engine)
            asked.append(pool.submit(stack.post, input="hello", conversation=second))
            eventually(partial(open_turn, stack, second))
            time.sleep(1)
            engine.faults.release.set()
            eventually(lambda: waiting_gauge(stack, "next_attempt") == 1)
            time.sleep(PLACES_KNOWN_S)
            stack.start_engine("a", alias=True)
            assert [answer.result().status_code for answer in asked] == [200, 200]


def test_a_turn_that_has_lost_its_attempt_goes_on_waiting_behind_a_full_line(database: str) -> None:
    with running_stack(database, max_waiting_turns=1, turn_wait_s=60) as stack:
        engine, other = stack.start_engine("a", alias=True), stack.start_engine("b")
        stack.retire(other)
        engine.faults.hold_after = 2
        engine.faults.die_after = 3
        first, second = (stack.conversation() for _ in range(2))
        headers = {"x-everturn-revision": other.revision}
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(stack.post, input="hello", conversation=first, headers=headers)]
            eventually(partial(open_turn, stack, first))
            asked.append(pool.submit(stack.post, input="hello", conversation=second))
            eventually(lambda: engine.faults.hold_after is None)
            stack.retire(engine)
            engine.faults.release.set()
            eventually(lambda: waiting_gauge(stack, "next_attempt") == 1)
            time.sleep(PLACES_KNOWN_S)
            for weights in ("a", "b"):
                stack.start_engine(weights)
            assert [answer.result().status_code for answer in asked] == [200, 200]


def why(stack: Stack, server: str, conversation: str) -> str:
    open_turn = stack.state(conversation).open_turn
    assert open_turn is not None
    read = stack.http.get(f"{server}/v1/responses/{open_turn.id}").json()
    assert read.get("status") == "in_progress", read
    return str(read["kv"]["reason"])


def test_an_operator_sees_how_many_turns_wait(stack: Stack) -> None:
    old, new = stack.start_engine("a", alias=True), stack.start_engine("b")
    rollout = start(stack, new.revision)
    for engine in (old, new):
        stack.retire(engine)
    assert look(stack, rollout)["turns_waiting"] == 0
    assert waiting_gauge(stack) == 0
    conversations = [stack.conversation() for _ in range(3)]
    with ThreadPoolExecutor(len(conversations)) as pool:
        asked = [pool.submit(stack.post, input="hello", conversation=chat) for chat in conversations]
        eventually(lambda: look(stack, rollout)["turns_waiting"] == 3)
        assert waiting_gauge(stack) == 3
        stack.start_engine("a")
        for answer in asked:
            answer.result()
    assert look(stack, rollout)["turns_waiting"] == 0
    assert waiting_gauge(stack) == 0


def waiting_gauge(stack: Stack, reason: str = "engine") -> float:
    lines = stack.http.get("/metrics").text.splitlines()
    name = f'everturn_turns_waiting{{alias="production",reason="{reason}"}}'
    [shown] = [line for line in lines if line.startswith(name)]
    return float(shown.split()[-1])


def test_a_line_that_is_full_takes_no_more_turns_and_says_so(database: str) -> None:
    with running_stack(database, max_waiting_turns=2, turn_wait_s=60) as stack:
        stack.retire(stack.start_engine("a", alias=True))
        waiting = [stack.conversation() for _ in range(2)]
        with ThreadPoolExecutor(3) as pool:
            asked = []
            for conversation in waiting:
                asked.append(pool.submit(stack.post, input="hello", conversation=conversation))
                eventually(partial(open_turn, stack, conversation))
            refused = stack.post(input="hello")
            stack.start_engine("a", alias=True)
            assert {a.result().status_code for a in asked} == {200}
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "queue_full"), error
    assert "2 turns wait before this one" in error["message"]


def open_turn(stack: Stack, conversation: str) -> bool:
    return stack.state(conversation).open_turn is not None


def comments(stack: Stack, conversation: str) -> list[str]:
    body = {"model": "production", "input": "hello", "conversation": conversation, "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        return [line for line in answer.iter_lines() if line.startswith(":")]


def test_a_rebuild_that_no_worker_takes_up_is_not_waited_for_long(database: str) -> None:
    with running_stack(database, rebuild_claim_s=0.3, rebuild_timeout_s=60) as stack:
        stack.start_engine("a", alias=True)
        conversation = stack.conversation()
        stack.ask("one", conversation=conversation)
        new = stack.start_engine("b", alias=True)
        stack.bell.broken = True
        answer = stack.ask("two", conversation=conversation)
        assert answer["revision"] == new.revision
        assert (answer["kv"]["plan"], answer["kv"]["source"]) == ("rebuild", "none")
        assert "queued in the end" in answer["kv"]["reason"]
