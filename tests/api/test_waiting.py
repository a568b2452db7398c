"""Turns that wait: for an engine, all at once, and for a rebuild that nobody takes up."""

from concurrent.futures import ThreadPoolExecutor

from tests.api.stack import eventually, running_stack


def test_many_turns_wait_for_one_engine_and_all_are_answered(database: str) -> None:
    with running_stack(database, pool_size=2, turn_wait_s=60) as stack:
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
