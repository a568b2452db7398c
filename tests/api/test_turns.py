"""Turns end to end: what each plan does, and that every prompt is exactly the stored ids and the new ones."""

from tests.api.stack import Stack
from tests.engines.simulated import ASSISTANT, STOP, USER, letter, render


def test_the_first_turn_is_cold_and_says_so(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    answer = stack.ask("hello there", conversation=stack.conversation())
    prompt = render([{"role": "user", "content": "hello there"}])
    assert engine.prompts == [tuple(prompt)]
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(prompt)
    assert answer["kv"]["plan"] == "cold"
    assert answer["kv"]["source"] == "none"
    assert answer["revision"] == engine.revision
    assert answer["revision_changed"] is False
    assert answer["usage"]["input_tokens"] == len(prompt)


def test_the_next_prompt_is_the_stored_window_and_the_rendered_delta(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    window = stack.state(conversation).window
    assert window == (*engine.prompts[0], *engine.answer(engine.prompts[0]))
    stack.ask("two", conversation=conversation)
    assert engine.prompts[1] == (*window, USER, *map(letter, "two"), STOP, ASSISTANT)
