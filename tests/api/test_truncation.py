"""`truncation: auto`: a conversation that outgrows the context loses its oldest items, and the exact window is the record."""

import httpx
import pytest

from tests.api.stack import Stack
from tests.engines.simulated import BLOCK, SimulatedEngine, text_of
from tests.engines.simulated_text import called, render

CONTEXT = 120
ANSWER = 8


def ask(stack: Stack, text: str, conversation: str | None, **body: object) -> httpx.Response:
    body = {"truncation": "auto", "max_output_tokens": ANSWER} | body
    return stack.post(input=text, conversation=conversation, **body)


def grown(stack: Stack, engine: SimulatedEngine, *, turns: int = 6) -> str:
    """A conversation with a system message, each turn of it some forty tokens; the last ones do not fit together any more."""
    engine.faults.max_model_len = CONTEXT
    conversation = stack.conversation(items=[{"role": "system", "content": "be brief"}])
    for number in range(turns):
        answer = ask(stack, str(number) * 25, conversation)
        assert answer.status_code == 200, answer.text
    return conversation


def test_a_conversation_longer_than_the_context_goes_on_without_its_oldest_items(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine)
    assert all(len(prompt) + ANSWER <= CONTEXT for prompt in engine.prompts)
    opening = tuple(render([{"role": "system", "content": "be brief"}]))[:-1]
    assert all(prompt[: len(opening)] == opening for prompt in engine.prompts)
    assert ord("0") + 10 not in engine.prompts[-1]
    assert len(stack.state(conversation).items) == 13


def test_t6_the_window_in_the_record_is_the_one_that_the_model_saw(stack: Stack) -> None:
    """Case T6, with `truncation: auto`."""
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine)
    state = stack.state(conversation)
    assert state.last is not None
    assert state.window == (*engine.prompts[-1], *state.last.output)
    assert any(turn.completed.dropped_items for turn in state.turns.values() if turn.completed)


def test_the_next_turn_extends_the_window_that_was_cut_and_reads_its_kv(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine, turns=2)
    stack.await_artifacts(conversation, 2)
    assert "left out" in ask(stack, "x" * 40, conversation).json()["kv"]["reason"]
    stack.await_artifacts(conversation, 1)
    before = stack.state(conversation).window
    answer = ask(stack, "so", conversation).json()
    assert engine.prompts[-1][: len(before)] == before
    assert (answer["kv"]["source"], answer["kv"]["refusal"]) == ("reused", None)
    assert answer["kv"]["tokens_loaded"] > len(before) - 2 * BLOCK


def test_a_turn_that_was_cut_is_answered_as_cold_and_says_why(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine, turns=3)
    answer = ask(stack, "x" * 40, conversation).json()
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[-1])
    assert "left out" in answer["kv"]["reason"]
    assert (answer["kv"]["source"], answer["kv"]["refusal"]) == ("none", None)
    assert answer["truncation"] == "auto"


def test_input_that_is_too_long_by_itself_is_refused_with_the_numbers(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine, turns=2)
    refused = ask(stack, "y" * 200, conversation)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert str(CONTEXT) in error["message"]
    assert ask(stack, "so", conversation).status_code == 200


def test_without_it_nothing_is_left_out(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine, turns=2)
    refused = ask(stack, "y" * 60, conversation, truncation="disabled")
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_count_of_tokens_is_of_the_prompt_that_was_cut(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = grown(stack, engine, turns=3)
    body = {"conversation": conversation, "input": "z" * 40, "truncation": "auto"}
    counted = stack.http.post("/v1/responses/input_tokens", json=body).json()
    answer = ask(stack, "z" * 40, conversation, max_output_tokens=None).json()
    assert "left out" in answer["kv"]["reason"]
    assert answer["usage"]["input_tokens"] == counted["input_tokens"]


def test_an_eighth_of_the_context_is_kept_for_an_answer_without_a_limit(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("0" * 20)
    body = {"input": "1" * 30, "previous_response_id": first["id"]}
    whole = stack.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
    enough = next(context for context in range(whole, 2 * whole) if context - context // 8 >= whole)
    for context, cut in ((enough, False), (enough - 1, True)):
        engine.faults.max_model_len = context
        answer = ask(stack, "1" * 30, None, previous_response_id=first["id"], max_output_tokens=None).json()
        assert ("left out" in answer["kv"]["reason"]) is cut
        assert (answer["usage"]["input_tokens"] < whole) is cut


@pytest.mark.parametrize("value", ["always", 1, {"type": "auto"}])
def test_any_other_value_is_refused_by_name(shared_stack: Stack, value: object) -> None:
    refused = shared_stack.post(input="hello", truncation=value)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncation")


def test_what_a_function_gave_back_keeps_its_call_and_what_the_call_was_for(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("0" * 60)
    tools = [{"type": "function", "name": "f"}]
    engine.faults.says = [called("f", "{}")]
    second = stack.ask("1" * 20, previous_response_id=first["id"], tools=tools)
    output = {"type": "function_call_output", "call_id": second["output"][0]["call_id"], "output": "2" * 20}
    engine.faults.max_model_len = len(engine.prompts[-1])
    third = stack.post(
        input=[output],
        previous_response_id=second["id"],
        tools=tools,
        truncation="auto",
        max_output_tokens=ANSWER,
    )
    assert third.status_code == 200, third.text
    assert "2 items were left out" in third.json()["kv"]["reason"]
    text = "".join(text_of(token) for token in engine.prompts[-1])
    assert text.endswith("1" * 20 + called("f", "{}") + "2" * 20)
    assert "0" not in text


def test_a_call_is_not_left_out_to_make_its_output_fit(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    tools = [{"type": "function", "name": "f"}]
    engine.faults.says = [called("f", "{}")]
    first = stack.ask("1" * 80, tools=tools)
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "2"}
    engine.faults.max_model_len = len(engine.prompts[-1])
    refused = stack.post(
        input=[output],
        previous_response_id=first["id"],
        tools=tools,
        truncation="auto",
        max_output_tokens=ANSWER,
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
