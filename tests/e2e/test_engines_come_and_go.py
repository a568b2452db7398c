"""Two real engines at once: who gets a turn, who prefills for whom, and what a turn does whose engine dies or is not there yet.

Every answer is compared with a cold prefill of its own window on the revision that gave it.
"""

import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest

from service.domain.events import AttemptFailed, KvRebuilt, TurnCompleted, TurnPinned
from service.domain.revision import Descriptor
from service.domain.turn import TurnState
from tests.api.stack import Stack, deltas, eventually, names, running_stack, sse, until_text
from tests.e2e.fleet import frozen, kill_tree
from tests.engines.real import EngineHall, RealEngine

if TYPE_CHECKING:
    from tests.engines.simulated import SimulatedEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SEA = "Tell me of the sea, of the ships that sail on it, and of those who came home again. " * 6
TRIES = 30
SETTLED_S = 0.3
"""For what an engine has said before it was stopped to be recorded."""
LONG_ANSWER = {"temperature": 1, "max_output_tokens": 1500}
GREEDY = {"temperature": 0, "max_output_tokens": 24}


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(
        database, split_min_tokens=64, split_timeout_s=60, turn_wait_s=60, rebuild_timeout_s=60
    ) as running:
        yield running


def join(stack: Stack, engine: RealEngine, role: str = "both") -> "SimulatedEngine":
    identity = engine.identity
    named = SimpleNamespace(
        boot=engine.boot,
        address=engine.url,
        descriptor=Descriptor.from_json(identity["descriptor"]),
        revision=identity["revision"],
        alive=True,
    )
    stack.register(cast("SimulatedEngine", named), role)
    return cast("SimulatedEngine", named)


def leave(stack: Stack, engine: "SimulatedEngine") -> None:
    engine.alive = False
    stack.retire(engine)


def completed(stack: Stack, chat: str) -> TurnCompleted:
    return [event for event in stack.events(chat) if isinstance(event, TurnCompleted)][-1]


def pins(stack: Stack, chat: str) -> list[TurnPinned]:
    return [event for event in stack.events(chat) if isinstance(event, TurnPinned)]


def sea() -> str:
    """No other test's: engines are shared, and so are their caches."""
    return f"{uuid4().hex}: {SEA}"


def equals_cold(stack: Stack, chat: str, target: RealEngine, **sampling: float) -> bool:
    """Token for token, with nothing stored and nothing cached; sampled as the turn was."""
    last = completed(stack, chat)
    params = {"max_tokens": len(last.output), "temperature": 0, "seed": turn_seed(last.turn)} | sampling
    body = {
        "token_ids": list(stack.state(chat).window[: last.prompt_tokens]),
        "sampling_params": params,
        "cache_salt": uuid4().hex,
    }
    answer = target.http.post(f"{target.url}/inference/v1/generate", json=body).raise_for_status()
    return bool(answer.json()["choices"][0]["token_ids"] == list(last.output))


def turn_seed(turn: str) -> int:
    return int.from_bytes(sha256(turn.encode()).digest()[:4], "big")


def provenance(stack: Stack, chat: str) -> dict[str, Any]:
    rows = stack.admin.get("/admin/audit/turn_provenance", params={"conversation_id": chat}).json()["data"]
    return dict(max(rows, key=lambda row: row["position"]))


def test_the_next_turn_finds_its_history_in_the_cache_of_the_engine_that_answered_before(
    stack: Stack, v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    first = join(stack, v12_engine)
    stack.move_alias(first)
    chat = stack.conversation()
    stack.ask(sea(), conversation=chat, **GREEDY)
    join(stack, second_v12_engine)
    stack.ask("And of the tides?", conversation=chat, **GREEDY)
    last = completed(stack, chat)
    assert last.engine == v12_engine.boot
    assert last.local_tokens > 100
    assert equals_cold(stack, chat, second_v12_engine)
    leave(stack, first)
    stack.ask("And of the moon?", conversation=chat, **GREEDY)
    assert completed(stack, chat).engine == second_v12_engine.boot
    assert completed(stack, chat).local_tokens == 0, "another engine's cache holds nothing of it"


def test_what_one_engine_prefilled_the_other_decodes_from_and_answers_as_if_cold(
    stack: Stack, v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    join(stack, v12_engine, "prefill")
    stack.move_alias(join(stack, second_v12_engine, "decode"))
    chat = stack.conversation()
    answer = stack.ask(sea(), conversation=chat, **GREEDY)
    assert answer["kv"]["source"] == "prefilled", answer["kv"]
    assert answer["kv"]["tokens_loaded"] > 64
    assert equals_cold(stack, chat, second_v12_engine)
    row = provenance(stack, chat)
    assert (row["prefill_engine"], row["decode_engine"]) == (v12_engine.boot, second_v12_engine.boot)
    assert row["first_divergence"] is None
    stack.await_artifacts(chat, 2)
    after = stack.ask(sea(), conversation=chat, **GREEDY)
    assert after["kv"]["source"] == "prefilled"
    assert equals_cold(stack, chat, second_v12_engine)


def test_r3_a_prefill_engine_of_v12_is_never_paired_with_a_decode_engine_of_v13(
    stack: Stack, v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    """Case R3; then also where the service takes one for the other."""
    join(stack, v12_engine, "prefill")
    stack.move_alias(join(stack, v13_engine, "decode"))
    chat = stack.conversation()
    assert stack.ask(sea(), conversation=chat, **GREEDY)["kv"]["source"] == "none"
    assert pins(stack, chat)[-1].prefill is None
    with stack.owner.begin() as conn:
        conn.exec_driver_sql(
            "UPDATE engines SET revision = %(v13)s WHERE boot = %(boot)s",
            {"v13": v13_engine.revision, "boot": v12_engine.boot},
        )
    mistaken = stack.conversation()
    answer = stack.ask(sea(), conversation=mistaken, **GREEDY)
    assert pins(stack, mistaken)[-1].prefill == v12_engine.boot
    assert answer["kv"]["source"] == "none"
    assert "differing fields: weights" in completed(stack, mistaken).kv_reason
    assert equals_cold(stack, mistaken, v13_engine)


def killed_in_its_answer(
    stack: Stack, chat: str, doomed: RealEngine, meanwhile: Callable[[], None]
) -> list[dict[str, Any]]:
    """What a stream said whose engine was killed under it; a random answer may be over before that."""
    body = {"input": "Go on.", "conversation": chat, "stream": True} | LONG_ANSWER
    for _ in range(TRIES):
        with stack.http.stream("POST", "/v1/responses", json=body) as answer:
            events = sse(answer)
            live = until_text(events)
            turn = live[0]["response"]["id"]
            with frozen({"address": doomed.url}):
                time.sleep(SETTLED_S)
                over = stack.state(chat).turns[turn].state is not TurnState.PINNED
                if not over:
                    meanwhile()
                    kill_tree(doomed.pid)
            live += list(events)
        if not over:
            return live
    pytest.fail(f"{TRIES} answers were over before their engine could be killed")


def test_r1_a_turn_whose_old_engine_is_killed_goes_on_with_the_new_revision_and_is_answered_once(
    stack: Stack, engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, v13_engine: RealEngine
) -> None:
    """Case R1: SIGKILL in the middle of the answer, after the alias has moved."""
    doomed = engine_hall.start(tiny_v12, kv_store, "--served-model-name", "doomed")
    old, new = join(stack, doomed), join(stack, v13_engine)
    stack.move_alias(old)
    chat = stack.conversation()
    stack.ask(sea(), conversation=chat, **GREEDY)
    stack.await_artifacts(chat, 1)
    live = killed_in_its_answer(stack, chat, doomed, lambda: stack.move_alias(new))
    old.alive = False
    engine_hall.stop(doomed)
    eventually(lambda: completed(stack, chat).turn == pins(stack, chat)[-1].turn)
    assert [pin.revision for pin in pins(stack, chat)[-2:]] == [old.revision, new.revision]
    last = completed(stack, chat)
    assert (last.engine_revision, last.attempt) == (new.revision, 2)
    [failed] = [event for event in stack.events(chat) if isinstance(event, AttemptFailed)]
    assert failed.partial_text.startswith(deltas(live)), "the client was sent no word of the other attempt"
    assert (names(live)[-1], live[-1]["response"]["error"]["code"]) == ("response.failed", "attempt_lost")
    assert equals_cold(stack, chat, v13_engine, temperature=1)


def test_r2_without_overlap_turns_wait_with_the_reason_and_then_replay(
    stack: Stack, v12_engine: RealEngine, v13_engine: RealEngine
) -> None:
    """Case R2: the old engine has gone before the new one is there."""
    old = join(stack, v12_engine)
    stack.move_alias(old)
    chat = stack.conversation()
    stack.ask(sea(), conversation=chat, **GREEDY)
    stack.await_artifacts(chat, 1)
    leave(stack, old)
    body = {"input": "And of the tides?", "conversation": chat, "stream": True} | GREEDY
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        events = sse(answer)
        next(e for e in events if f"no ready engine serves {old.revision}" in e.get("text", ""))
        stack.move_alias(join(stack, v13_engine))
        final = list(events)[-1]["response"]
    assert (final["revision"], final["revision_changed"]) == (v13_engine.revision, True)
    assert final["kv"]["plan"] == "rebuild"
    [rebuilt] = [event for event in stack.events(chat) if isinstance(event, KvRebuilt)]
    assert (rebuilt.revision, rebuilt.producer) == (v13_engine.revision, v13_engine.boot)
    assert equals_cold(stack, chat, v13_engine)
