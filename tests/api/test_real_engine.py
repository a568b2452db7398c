"""The surface on real vLLM: what it renders, streams, counts and leaves is what clients are told."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from service.domain.revision import Descriptor
from tests.api.stack import Stack, deltas, eventually, sse, until_text
from tests.api.test_fork_rebuilds import both_wait, waiting
from tests.api.test_resume import check_every_number, said
from tests.engines.real import RealEngine

if TYPE_CHECKING:
    from tests.engines.simulated import SimulatedEngine

pytestmark = pytest.mark.engine

TRIES = 10
GREEDY = {"temperature": 0, "max_output_tokens": 24}


def register(stack: Stack, engine: RealEngine, role: str = "both") -> "SimulatedEngine":
    identity = engine.identity
    named = cast(
        "SimulatedEngine",
        SimpleNamespace(
            boot=engine.boot,
            address=engine.url,
            descriptor=Descriptor.from_json(identity["descriptor"]),
            revision=identity["revision"],
            alive=True,
        ),
    )
    stack.register(named, role)
    return named


@pytest.fixture
def real_stack(stack: Stack, v12_engine: RealEngine) -> Stack:
    stack.move_alias(register(stack, v12_engine))
    return stack


def running_requests(engine: RealEngine) -> float:
    lines = engine.http.get(f"{engine.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def test_a_real_stream_is_resumed_at_every_number(real_stack: Stack) -> None:
    live = said(real_stack.stream("Tell me more.", **GREEDY))
    assert live[-1]["type"] in {"response.completed", "response.incomplete"}
    assert deltas(live)
    check_every_number(real_stack, live)


def test_a_cancelled_response_frees_the_engine(real_stack: Stack, v12_engine: RealEngine) -> None:
    live = cancelled(real_stack)
    assert live[-1]["response"]["status"] == "cancelled"
    eventually(lambda: running_requests(v12_engine) == 0)
    assert v12_engine.is_healthy()


def cancelled(stack: Stack) -> list[dict[str, Any]]:
    """What a stream said whose response was cancelled; a random answer may be over before that."""
    body = {"input": "Go on.", "stream": True, "temperature": 1, "max_output_tokens": 3000}
    for _ in range(TRIES):
        with stack.http.stream("POST", "/v1/responses", json=body) as answer:
            events = sse(answer)
            live = until_text(events)
            turn = live[0]["response"]["id"]
            status = stack.http.post(f"/v1/responses/{turn}/cancel").json()["status"]
            live += said(list(events))
        if status == "cancelled":
            return live
    pytest.fail(f"{TRIES} answers were over before they could be cancelled")


def test_counts_are_the_engines_own_before_and_after_a_deletion(real_stack: Stack) -> None:
    conversation = real_stack.conversation(items=[{"role": "system", "content": "Be brief."}])

    def answered(text: str) -> dict[str, Any]:
        body = {"input": text, "conversation": conversation}
        counted = real_stack.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
        answer = real_stack.ask(text, conversation=conversation, **GREEDY)
        assert answer["usage"]["input_tokens"] == counted
        return answer

    answered("one")
    answered("two")
    before = answered("three")["usage"]["input_tokens"]
    first = real_stack.state(conversation).items[0].id
    real_stack.http.delete(f"/v1/conversations/{conversation}/items/{first}")
    after = answered("four")
    assert after["kv"]["source"] == "none"
    turn = real_stack.state(conversation).turns[after["id"]]
    assert turn.completed is not None
    assert turn.completed.extends is None
    assert answered("five")["usage"]["input_tokens"] > before


def test_a_chat_completion_says_what_a_response_says(real_stack: Stack, v12_engine: RealEngine) -> None:
    response = real_stack.ask("What is the capital of France?", **GREEDY)
    answer = real_stack.openai.chat.completions.create(
        model="production",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_completion_tokens=24,
    )
    assert answer.choices[0].message.content == response["output"][0]["content"][0]["text"]
    assert answer.system_fingerprint == response["revision"] == v12_engine.revision
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == response["usage"]["input_tokens"]


def test_an_answer_without_a_limit_is_taken_and_ends_by_itself(real_stack: Stack) -> None:
    """vLLM takes a `max_tokens` of null for what its context has room for."""
    answer = real_stack.ask("What is the capital of France? Say only its name.", temperature=0)
    assert (answer["status"], answer["max_output_tokens"]) == ("completed", None)
    assert answer["usage"]["output_tokens"] > 0


def test_a_prompt_that_fills_the_context_is_refused_where_it_is_rendered(
    real_stack: Stack, v12_engine: RealEngine
) -> None:
    refused = real_stack.post(input="sea " * 5000)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")
    assert "fewer than 4096" in error["message"]
    attempt = f"{v12_engine.url}/everturn/attempts/{error['response_id']}.1"
    assert v12_engine.http.get(attempt).status_code == 404


def test_a_fork_answers_from_its_parents_kv_what_it_would_answer_without_any(
    real_stack: Stack, second_v12_engine: RealEngine
) -> None:
    """On another engine than the parent, so that nothing but stored KV can be at hand."""
    conversation = real_stack.conversation()
    hills = "Tell me of the hills, of the herds that graze on them, and of those who keep the herds. " * 4
    first = real_stack.ask(hills, conversation=conversation, **GREEDY)
    real_stack.await_artifacts(conversation, 1)
    real_stack.ask("And of the tides?", conversation=conversation, **GREEDY)
    real_stack.await_artifacts(conversation, 2)
    [parents] = real_stack.engines
    cast("SimpleNamespace", parents).alive = False
    real_stack.retire(parents)
    register(real_stack, second_v12_engine)
    forked = real_stack.ask("And of the moon?", previous_response_id=first["id"], **GREEDY)
    fork = forked["conversation"]["id"]
    assert fork != conversation
    assert (forked["kv"]["plan"], forked["kv"]["source"]) == ("reuse", "reused")
    assert forked["kv"]["tokens_loaded"] > 0
    turn = real_stack.state(fork).turns[forked["id"]]
    assert turn.completed is not None
    assert turn.completed.extends == first["id"]
    window = real_stack.state(fork).window
    prompt, output = window[: turn.completed.prompt_tokens], turn.completed.output
    assert second_v12_engine.cold(list(prompt), max_tokens=len(output)).tokens == list(output)


def test_forks_of_one_history_answer_from_one_rebuild_what_they_would_answer_without_any(
    stack: Stack, v13_engine: RealEngine, v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    """Prefilled on another engine than they decode on, and of what no other test talks: nothing but stored KV can be at hand."""
    stack.move_alias(register(stack, v13_engine))
    conversation = stack.conversation()
    desert = "Tell me of the desert, of the camels that cross it, and of the wells that they know. " * 4
    stack.ask(desert, conversation=conversation, **GREEDY)
    stack.await_artifacts(conversation, 1)
    forks = [stack.conversation(fork_of={"conversation": conversation}) for _ in range(2)]
    register(stack, second_v12_engine, "prefill")
    stack.move_alias(register(stack, v12_engine, "decode"))
    with ThreadPoolExecutor(2) as pool:
        asked = both_wait(stack, forks, pool, ("And of the dunes?", "And of the stars?"))
        [rebuild] = {waiting(stack, fork) for fork in forks}
        stack.bell.work(rebuild)
        answers = [answer.result() for answer in asked]
    # What the first has loaded is in the engine's own cache for the second, if that comes later.
    assert "rebuilt" in {answer["kv"]["source"] for answer in answers}
    for fork, answer in zip(forks, answers, strict=True):
        assert answer["kv"]["plan"] == "rebuild", answer["kv"]
        assert answer["usage"]["input_tokens_details"]["cached_tokens"] > 64, answer
        state = stack.state(fork)
        turn = state.turns[answer["id"]]
        assert turn.completed is not None
        prompt, output = state.window[: turn.completed.prompt_tokens], turn.completed.output
        assert v12_engine.cold(list(prompt), max_tokens=len(output)).tokens == list(output)


def test_t6_a_conversation_that_outgrows_the_context_goes_on_in_the_window_that_is_recorded(
    real_stack: Stack, v12_engine: RealEngine
) -> None:
    """Case T6, on real vLLM."""
    conversation = real_stack.conversation(items=[{"role": "system", "content": "Be brief."}])
    context = v12_engine.identity["max_model_len"]
    long = {"conversation": conversation, "truncation": "auto", "max_output_tokens": 16, "temperature": 0}
    for letter in "abc":
        answer = real_stack.ask(letter * (context // 4), **long)
        assert answer["status"] in {"completed", "incomplete"}
    cut = real_stack.ask("d" * (context // 4), **long)
    assert "left out" in cut["kv"]["reason"]
    assert cut["usage"]["input_tokens"] < context * 0.75
    after = real_stack.ask("And now?", **long)
    state = real_stack.state(conversation)
    first, second = (state.turns[each["id"]].completed for each in (cut, after))
    assert first is not None
    assert second is not None
    assert (first.dropped_items, second.extends) == (4, cut["id"])
    prompt = list(state.window[: second.prompt_tokens])
    opening = v12_engine.render([{"role": "system", "content": "Be brief."}]).json()["token_ids"]
    shared = opening[: opening.index(2) + 1]
    assert prompt[: len(shared)] == shared
    assert v12_engine.cold(prompt, max_tokens=len(second.output)).tokens == list(second.output)
