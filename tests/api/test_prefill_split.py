"""Long prompts are prefilled on engines that do nothing else, and decoded on others of the same revision; without them it is only slower."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.domain.artifact import RefusalReason
from service.domain.events import KvRefused, TurnCompleted, TurnPinned
from tests.api.stack import Stack, eventually, running_stack
from tests.engines.simulated import Faults, SimulatedEngine

LONG = "x" * 60


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database, split_min_tokens=40, split_timeout_s=5) as running:
        yield running


def start(stack: Stack, role: str, weights: str = "a") -> SimulatedEngine:
    engine = stack.exits.enter_context(SimulatedEngine(weights, stack.store))
    stack.register(engine, role)
    return engine


def pair(stack: Stack) -> tuple[SimulatedEngine, SimulatedEngine]:
    prefill, decode = start(stack, "prefill"), start(stack, "decode")
    stack.move_alias(decode)
    return prefill, decode


def pinned(stack: Stack, chat: str) -> TurnPinned:
    return [e for e in stack.events(chat) if isinstance(e, TurnPinned)][-1]


def completed(stack: Stack, chat: str) -> TurnCompleted:
    return [e for e in stack.events(chat) if isinstance(e, TurnCompleted)][-1]


def text(answer: dict[str, Any]) -> str:
    return str(answer["output"][0]["content"][0]["text"])


def test_a_long_prompt_is_prefilled_on_one_engine_and_decoded_on_the_other(stack: Stack) -> None:
    prefill, decode = pair(stack)
    chat = stack.conversation()
    answer = stack.ask(LONG, conversation=chat)
    assert (answer["kv"]["source"], answer["attempt"]) == ("prefilled", 1)
    assert text(answer) == decode.cold_text(decode.prompts[-1])
    assert prefill.prompts == decode.prompts
    assert [r["sampling_params"]["max_tokens"] for r in prefill.requests] == [1]
    done = completed(stack, chat)
    assert done.loaded is not None
    assert (done.loaded.producer, done.engine) == (prefill.boot, decode.boot)
    assert pinned(stack, chat).prefill == prefill.boot


def test_both_engines_stand_in_the_audit(stack: Stack) -> None:
    prefill, decode = pair(stack)
    chat = stack.conversation()
    stack.ask(LONG, conversation=chat)
    rows = stack.admin.get("/admin/audit/turn_provenance", params={"conversation_id": chat}).json()["data"]
    assert [
        (r["prefill_engine"], r["decode_engine"], r["kv_source"], r["first_divergence"]) for r in rows
    ] == [(prefill.boot, decode.boot, "prefilled", None)]


def test_what_is_short_or_at_hand_is_prefilled_where_it_is_decoded(stack: Stack) -> None:
    prefill, _ = pair(stack)
    chat = stack.conversation()
    assert stack.ask("short", conversation=chat)["kv"]["source"] == "none"
    stack.await_artifacts(chat, 1)
    assert stack.ask("again", conversation=chat)["kv"]["source"] == "reused"
    assert prefill.prompts == []
    assert pinned(stack, chat).prefill is None


def test_what_the_prefill_engine_made_serves_the_next_turn_too(stack: Stack) -> None:
    prefill, decode = pair(stack)
    chat = stack.conversation()
    stack.ask(LONG, conversation=chat)
    stack.await_artifacts(chat, 2)
    answer = stack.ask(LONG, conversation=chat)
    assert answer["kv"]["source"] == "prefilled"
    offers = [r["kv_transfer_params"]["everturn"]["offer"] for r in prefill.requests]
    assert offers[0] is None
    assert offers[1] is not None, "it goes on from what there is"
    assert text(answer) == decode.cold_text(decode.prompts[-1])


@pytest.mark.parametrize(
    "faults",
    [
        {"abort": 9},
        {"forget": True},
        {"other_prompt": True},
        {"evidence": {"revision": "rev_" + "0" * 64}},
        {"evidence": {"boot": "boot_other"}},
        {"evidence": {"published": None, "publish_failure": "the store is full"}},
    ],
    ids=lambda faults: str(next(iter(faults))),
)
def test_a_prefill_engine_that_fails_costs_no_attempt(stack: Stack, faults: dict[str, Any]) -> None:
    prefill, decode = pair(stack)
    prefill.faults = Faults(**faults)
    chat = stack.conversation()
    answer = stack.ask(LONG, conversation=chat)
    assert (answer["kv"]["source"], answer["attempt"]) == ("none", 1)
    assert completed(stack, chat).kv_reason.startswith(
        f"prefilled where it decodes, engine {prefill.boot} did not: "
    )
    assert text(answer) == decode.cold_text(decode.prompts[-1])


def test_one_that_is_gone_is_left_alone_for_a_while(stack: Stack) -> None:
    prefill, _ = pair(stack)
    prefill.faults.abort = 1
    stack.ask(LONG)
    stack.ask(LONG)
    assert len(prefill.prompts) == 1


def test_one_that_takes_too_long_is_not_waited_for(database: str) -> None:
    with running_stack(database, split_min_tokens=40, split_timeout_s=0.3) as stack:
        prefill, decode = pair(stack)
        prefill.faults.hold_after = 0
        answer = stack.ask(LONG)
        assert answer["kv"]["source"] == "none"
        assert text(answer) == decode.cold_text(decode.prompts[-1])


def test_r3_engines_of_two_revisions_are_never_paired(stack: Stack) -> None:
    """Case R3."""
    old, new = start(stack, "prefill", "a"), start(stack, "decode", "b")
    stack.move_alias(new)
    chat = stack.conversation()
    answer = stack.ask(LONG, conversation=chat)
    assert (answer["kv"]["source"], answer["revision"]) == ("none", new.revision)
    assert old.prompts == []
    assert pinned(stack, chat).prefill is None


def test_r3_where_they_are_paired_by_mistake_the_fields_that_differ_are_named(stack: Stack) -> None:
    """Case R3: what is registered as the prefill engine of v13 is a process of v12."""
    old, new = start(stack, "prefill", "a"), start(stack, "decode", "b")
    stack.move_alias(new)
    with stack.owner.begin() as conn:
        conn.exec_driver_sql(
            "UPDATE engines SET revision = %(new)s WHERE boot = %(boot)s",
            {"new": new.revision, "boot": old.boot},
        )
    chat = stack.conversation()
    answer = stack.ask(LONG, conversation=chat)
    assert answer["kv"]["source"] == "none"
    reason = completed(stack, chat).kv_reason
    assert f"The engine is {old.revision}, not {new.revision}; differing fields: weights." in reason
    assert text(answer) == new.cold_text(new.prompts[-1])


def test_what_a_prefill_engine_refuses_is_recorded_and_not_offered_where_it_decodes(stack: Stack) -> None:
    prefill, decode = pair(stack)
    chat = stack.conversation()
    stack.ask("short", conversation=chat)
    stack.await_artifacts(chat, 1)
    prefill.faults.corrupt = True
    answer = stack.ask(LONG, conversation=chat)
    assert (answer["kv"]["source"], answer["attempt"]) == ("none", 1)
    [refused] = [e for e in stack.events(chat) if isinstance(e, KvRefused)]
    assert (refused.engine, refused.refusal.reason) == (prefill.boot, RefusalReason.CHECKSUM_MISMATCH)
    assert decode.requests[-1]["kv_transfer_params"]["everturn"]["offer"] is None
    assert text(answer) == decode.cold_text(decode.prompts[-1])


def test_a_prefill_counts_as_load_of_the_engine_that_does_it(stack: Stack) -> None:
    prefill, decode = pair(stack)
    decode.faults.hold_after = 1
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, LONG)
        eventually(lambda: decode.faults.hold_after is None)
        loads = {e["boot"]: e["load"] for e in stack.admin.get("/admin/engines").json()["data"]}
        decode.faults.release.set()
        asked.result()
    assert loads == {prefill.boot: 1, decode.boot: 1}


def test_once_stored_kv_has_failed_a_turn_it_goes_no_more_by_the_store(stack: Stack) -> None:
    prefill, decode = pair(stack)
    decode.faults.corrupt = True
    answer = stack.ask(LONG)
    assert (answer["kv"]["source"], answer["attempt"]) == ("none", 2)
    assert answer["kv"]["refusal"]["reason"] == "checksum_mismatch"
    assert len(prefill.prompts) == 1
    assert text(answer) == decode.cold_text(decode.prompts[-1])
