"""Forks of one history after an upgrade: it is prefilled once for all of them, whether they ask at once or one after the other."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from service.domain.events import KvRebuilt, TurnPinned
from service.store import audit
from tests.api.stack import Stack, eventually, running_stack
from tests.engines.simulated import SimulatedEngine

TALK = " ".join(["said"] * 20)
GREEDY = {"temperature": 0, "max_output_tokens": 24}
LEAST = 64
"""Tokens of a history that is worth a rebuild; what the forks say of their own is shorter."""


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database, rebuild_claim_s=30, rebuild_min_tokens=LEAST) as running:
        yield running


def forked(stack: Stack, count: int = 2) -> tuple[list[str], SimulatedEngine]:
    """Forks of a conversation with a long answer, and the engine of the revision that the alias points at now."""
    stack.start_engine("a", alias=True)
    chat = stack.conversation()
    stack.ask(TALK, conversation=chat)
    stack.await_artifacts(chat, 1)
    forks = [stack.conversation(fork_of={"conversation": chat}) for _ in range(count)]
    return forks, stack.start_engine("b", alias=True)


def pins(stack: Stack, conversation: str) -> list[TurnPinned]:
    return [event for event in stack.events(conversation) if isinstance(event, TurnPinned)]


def waiting(stack: Stack, conversation: str) -> str:
    """The rebuild that its last attempt waits for."""
    eventually(lambda: pins(stack, conversation) and pins(stack, conversation)[-1].rebuild)
    return str(pins(stack, conversation)[-1].rebuild)


def prefills(stack: Stack, engine: SimulatedEngine, fork: str) -> int:
    """Of the history that it shares, by workers: turns ask with what was said since, too."""
    state = stack.state(fork)
    return engine.prompts.count(state.window[: state.ancestors[0].tokens])


def both_wait(
    stack: Stack,
    forks: list[str],
    pool: ThreadPoolExecutor,
    questions: tuple[str, str] = ("and then", "and then"),
) -> list["Future[dict[str, Any]]"]:
    """The second comes when the first waits."""
    stack.bell.unheard = True
    asked = []
    for fork, question in zip(forks, questions, strict=True):
        asked.append(pool.submit(stack.ask, question, conversation=fork, **GREEDY))
        waiting(stack, fork)
    stack.bell.unheard = False
    return asked


def exact(answer: dict[str, Any], engine: SimulatedEngine) -> None:
    text = answer["output"][0]["content"][0]["text"]
    assert text in {engine.cold_text(prompt) for prompt in engine.prompts}


def test_two_that_ask_at_once_wait_for_one_rebuild(stack: Stack) -> None:
    forks, engine = forked(stack)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, forks, pool)
        [rebuild] = {waiting(stack, fork) for fork in forks}
        before = prefills(stack, engine, forks[0])
        stack.bell.work(rebuild)
        answers = [answer.result() for answer in asked]
    assert (before, prefills(stack, engine, forks[0])) == (0, 1)
    for answer in answers:
        assert (answer["kv"]["plan"], answer["kv"]["source"]) == ("rebuild", "rebuilt")
        exact(answer, engine)
    told = [pins(stack, fork)[0] for fork in forks]
    assert f"as the rebuild of {forks[0]} does" in told[1].reason
    assert [one.offer is None for one in told] == [False, True]


def test_the_record_has_for_both_what_they_waited_for_and_the_cost_once(stack: Stack) -> None:
    forks, _ = forked(stack)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, forks, pool)
        stack.bell.work(waiting(stack, forks[0]))
        turns = [answer.result()["id"] for answer in asked]
    made = [[e for e in stack.events(fork) if isinstance(e, KvRebuilt)] for fork in forks]
    assert [len(one) for one in made] == [1, 1]
    assert made[0][0].artifact == made[1][0].artifact
    with stack.owner.begin() as conn:
        told = [
            audit.read_view(conn, view, filters={"conversation_id": fork}, after=None, limit=9)[-1]
            for view in ("decisions", "rebuild_cost")
            for fork in forks
        ]
        origin = audit.read_view(
            conn, "artifacts", filters={"artifact_id": made[0][0].artifact}, after=None, limit=9
        )
    assert [(one["turn_id"], one["rebuild_id"]) for one in told] == [
        (turn, made[0][0].rebuild) for turn in turns * 2
    ]
    assert [one["shared"] for one in told[2:]] == [False, True]
    assert [(one["made_by"], one["turn_id"]) for one in origin] == [("rebuild", turns[0])]


def test_one_that_asks_later_reads_what_was_made_for_the_other(stack: Stack) -> None:
    forks, engine = forked(stack)
    first = stack.ask("and then", conversation=forks[0])
    assert first["kv"]["source"] == "rebuilt"
    rung = len(stack.rung)
    second = stack.ask("or else", conversation=forks[1])
    assert (second["kv"]["plan"], second["kv"]["source"]) == ("reuse", "reused")
    exact(second, engine)
    assert len(stack.rung) == rung
    assert prefills(stack, engine, forks[1]) == 1


def test_what_was_forked_and_its_fork_share_it_too(stack: Stack) -> None:
    [fork], engine = forked(stack, 1)
    parent = str(stack.state(fork).ancestors[0].conversation)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, [fork, parent], pool)
        [rebuild] = {waiting(stack, one) for one in (fork, parent)}
        stack.bell.work(rebuild)
        answers = [answer.result() for answer in asked]
    assert [answer["kv"]["source"] for answer in answers] == ["rebuilt", "rebuilt"]
    assert prefills(stack, engine, fork) == 1


def test_where_the_other_is_cancelled_it_is_planned_anew_and_rebuilt_for_itself(stack: Stack) -> None:
    forks, engine = forked(stack)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, forks, pool)
        stack.bell.unheard = True
        first = waiting(stack, forks[0])
        open_turn = stack.state(forks[0]).open_turn
        assert open_turn is not None
        assert stack.http.post(f"/v1/responses/{open_turn.id}/cancel").is_success
        eventually(lambda: len(pins(stack, forks[1])) > 1)
        own = waiting(stack, forks[1])
        assert own != first
        stack.bell.work(own)
        answer = asked[1].result()
        assert asked[0].result()["status"] == "cancelled"
    assert (answer["status"], answer["kv"]["source"]) == ("completed", "rebuilt")
    exact(answer, engine)


def test_one_whose_own_part_is_long_is_rebuilt_for_itself(stack: Stack) -> None:
    """It would have to prefill more than a rebuild's worth behind what they share."""
    stack.start_engine("a", alias=True)
    chat = stack.conversation()
    stack.ask(TALK, conversation=chat)
    forks = [stack.conversation(fork_of={"conversation": chat}) for _ in range(2)]
    for fork, said in zip(forks, ("yes", "no"), strict=True):
        stack.ask(" ".join([said] * 40), conversation=fork)
    stack.start_engine("b", alias=True)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, forks, pool)
        rebuilds = [waiting(stack, fork) for fork in forks]
        assert len(set(rebuilds)) == 2
        for rebuild in rebuilds:
            stack.bell.work(rebuild)
        assert [answer.result()["kv"]["source"] for answer in asked] == ["rebuilt", "rebuilt"]


def test_another_conversation_with_the_same_words_shares_nothing(stack: Stack) -> None:
    """Who is no relative is not looked for: what words a stranger wrote is not to be found out by how long one waits."""
    stack.start_engine("a", alias=True)
    chats = [stack.conversation() for _ in range(2)]
    for chat in chats:
        stack.ask(TALK, conversation=chat)
    stack.start_engine("b", alias=True)
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, chats, pool)
        rebuilds = [waiting(stack, chat) for chat in chats]
        assert len(set(rebuilds)) == 2
        for rebuild in rebuilds:
            stack.bell.work(rebuild)
        for answer in asked:
            answer.result()


def test_two_that_are_planned_in_the_same_moment_order_one(stack: Stack) -> None:
    forks, _ = forked(stack, 4)
    stack.bell.unheard = True
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(stack.ask, "and then", conversation=fork) for fork in forks]
        [rebuild] = {waiting(stack, fork) for fork in forks}
        stack.bell.unheard = False
        stack.bell.work(rebuild)
        assert {answer.result()["kv"]["source"] for answer in asked} == {"rebuilt"}
    with stack.owner.begin() as conn:
        assert conn.execute(text("SELECT count(*) FROM rebuilds")).scalar_one() == 1
