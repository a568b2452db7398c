"""What OGX's integration tests ask of answers, told anew: basic_responses, structured_output, reasoning and file_search of `responses`.

Of the last what is asked of forms of text. Its langchain_responses and langgraph_responses ask what `tests/clients` tries. Deviations: images,
`reasoning`, its own tools and parameters are refused by name; the part in `response.content_part.done` has its log-probabilities.
"""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.api.conformance.asking import WEATHER, answered, counted, items, streamed, text_deltas
from tests.api.stack import Stack
from tests.engines.simulated import SimulatedEngine, text_of

EARTH = "Which planet do humans live on?"
LOGPROBS = ["message.output_text.logprobs"]
questions = pytest.mark.parametrize(
    ("question", "word"),
    [(EARTH, "Earth"), ("Which planet, beginning with S, has rings around it?", "Saturn")],
    ids=["earth", "saturn"],
)

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))


def listed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def thing(**properties: dict[str, Any]) -> dict[str, Any]:
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties} | required


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strings": (thing(name=STRING, city=STRING), {"name": "text", "city": "text"}),
    "integer": (thing(name=STRING, age=INTEGER), {"name": "text", "age": 30}),
    "booleans": (thing(active=BOOLEAN, verified=BOOLEAN), {"active": True, "verified": True}),
    "number": (thing(price=NUMBER), {"price": 999.5}),
    "list of strings": (thing(skills=listed(STRING)), {"skills": ["text"]}),
    "list of integers": (thing(scores=listed(INTEGER)), {"scores": [30]}),
    "list of objects": (thing(members=listed(thing(role=STRING))), {"members": [{"role": "text"}]}),
    "nested": (thing(department=thing(manager=STRING)), {"department": {"manager": "text"}}),
    "mixed": (
        thing(age=INTEGER, salary=NUMBER, skills=listed(STRING), address=thing(zip=INTEGER)),
        {"age": 30, "salary": 999.5, "skills": ["text"], "address": {"zip": 30}},
    ),
    "capital": (thing(capital=STRING), {"capital": "Paris"}),
}
"""Schemas, and the only answers that the engine gives where it was handed them."""


@questions
def test_an_answer_is_counted_kept_and_gone_on_from(scripted: OpenAI, question: str, word: str) -> None:
    response = answered(scripted, question)
    assert word in response.output_text
    counted(response)
    assert scripted.responses.retrieve(response.id).output_text == response.output_text
    loud = answered(scripted, "Your last answer in all caps, please.", previous_response_id=response.id)
    assert word.upper() in loud.output_text


@questions
def test_a_stream_ends_with_the_response_that_is_kept(scripted: OpenAI, question: str, word: str) -> None:
    last = streamed(scripted, question)[-1].response
    assert last.status == "completed"
    assert word in last.output_text
    counted(last)
    assert scripted.responses.retrieve(last.id).output_text == last.output_text


@questions
def test_a_streams_text_comes_between_its_first_and_its_last_event(
    scripted: OpenAI, question: str, word: str
) -> None:
    events = streamed(scripted, question)
    assert events[0].response.output_text == ""
    assert word in events[-1].response.output_text
    assert text_deltas(events[1:-1]) == events[-1].response.output_text


def test_a_second_turn_has_the_first_in_its_prompt(scripted: OpenAI) -> None:
    first = answered(scripted, EARTH)
    second = answered(scripted, "Which planet was your previous response?", previous_response_id=first.id)
    assert "Earth" in second.output_text


def test_log_probabilities_come_with_an_answer_that_asked_for_them(scripted: OpenAI) -> None:
    [plain] = items(answered(scripted, EARTH))
    [scored] = items(answered(scripted, EARTH, include=LOGPROBS))
    assert plain.type == scored.type == "message"
    assert plain.content[0].logprobs == []
    assert scored.content[0].logprobs


def test_log_probabilities_of_a_stream_are_in_what_is_done(scripted: OpenAI) -> None:
    """The part's are the deviation."""
    events = {event.type: event for event in streamed(scripted, EARTH, include=LOGPROBS)}
    assert events["response.output_text.delta"].logprobs == []
    [message] = events["response.completed"].response.output
    told = (
        message.content[0].logprobs,
        events["response.output_item.done"].item.content[0].logprobs,
        events["response.content_part.done"].part.logprobs,
    )
    assert all(told)
    assert len(events["response.output_text.done"].logprobs) == len(told[0])


def test_log_probabilities_asked_for_with_a_tool_leave_its_call_as_it_is(scripted: OpenAI) -> None:
    asked = "What is the weather in Paris?"
    [call] = items(answered(scripted, asked, include=LOGPROBS, tools=[WEATHER]))
    assert (call.type, call.status, call.name) == ("function_call", "completed", "get_weather")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("schema", "answer"), FORMS.values(), ids=FORMS)
def test_an_answer_has_the_form_that_was_asked_for(
    scripted: OpenAI, schema: dict[str, Any], answer: dict[str, Any], strict: bool
) -> None:
    form = {"type": "json_schema", "name": "Form", "schema": schema, "strict": strict}
    response = answered(scripted, "Make one up.", text={"format": form})
    assert json.loads(response.output_text) == answer
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.model_dump(exclude_none=True, by_alias=True) == form


def test_a_plain_form_of_text_asks_for_nothing(scripted: OpenAI) -> None:
    response = answered(scripted, "What is the capital of France?", text={"format": {"type": "text"}})
    assert "Paris" in response.output_text
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.model_dump() == {"type": "text"}


THOUGHT, SUM = "Two and two make four.", "It is 4."


@pytest.fixture
def reasoner(stack: Stack) -> SimulatedEngine:
    engine = stack.start_engine("a", alias=True)
    engine.faults.reasons = True
    engine.faults.says = [f"<think>{THOUGHT}</think>{SUM}"]
    return engine


def test_reasoning_is_an_item_with_its_text_and_without_a_summary(
    stack: Stack, reasoner: SimulatedEngine
) -> None:
    item, message = items(answered(stack.openai, "What is 2 + 2?"))
    assert (item.type, message.type) == ("reasoning", "message")
    assert item.id
    assert [(part.type, part.text) for part in item.content] == [("reasoning_text", THOUGHT)]
    assert item.summary == []


def test_reasoning_is_streamed_before_the_answer(stack: Stack, reasoner: SimulatedEngine) -> None:
    events = streamed(stack.openai, "What is 2 + 2?")
    kinds = [event.type for event in events]
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    [done] = [event.text for event in events if event.type == "response.reasoning_text.done"]
    assert thought == done == THOUGHT
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    added, finished = (
        next(n for n, e in enumerate(events) if e.type == kind and e.item.type == "reasoning")
        for kind in ("response.output_item.added", "response.output_item.done")
    )
    assert added < finished
    assert events[finished].item.summary == []
    counted(events[-1].response)


def test_reasoning_that_is_sent_back_is_in_the_prompt_as_it_was_written(
    stack: Stack, reasoner: SimulatedEngine
) -> None:
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    output = [item.model_dump(exclude_none=True) for item in items(answered(stack.openai, asked))]
    reasoner.faults.says = ["It is 12."]
    again = answered(stack.openai, [*asked, *output, {"role": "user", "content": "Times 3?"}])
    assert again.output_text == "It is 12."
    assert f"<think>{THOUGHT}</think>{SUM}" in "".join(map(text_of, reasoner.prompts[-1]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "asked",
    [{"effort": effort} for effort in ("low", "medium", "high")]
    + [{"effort": "high", "summary": summary} for summary in ("concise", "detailed", "auto")],
    ids=str,
)
def test_how_much_is_reasoned_cannot_be_asked_for(
    scripted: OpenAI, asked: dict[str, str], stream: bool
) -> None:
    """A deviation."""
    with pytest.raises(openai.BadRequestError) as refused:
        answered(scripted, "What is 2 + 2?", reasoning=asked, stream=stream)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "reasoning")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", ["data:image/png;base64,not_base64!", "http://127.0.0.1:1/image.png"])
def test_an_image_is_refused_before_there_is_a_response(scripted: OpenAI, url: str, stream: bool) -> None:
    """A deviation."""
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    with pytest.raises(openai.BadRequestError) as refused:
        answered(scripted, [{"role": "user", "content": parts}], stream=stream)
    assert refused.value.param == "input[0].content[1].type"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "m", "server_url": "http://m"}]}, "tools[0].type"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"extra_body": {"context_management": [{"type": "compaction"}]}}, "context_management"),
        ({"extra_body": {"guardrails": ["llama-guard"]}}, "guardrails"),
        ({"extra_body": {"max_infer_iters": 1}}, "max_infer_iters"),
        ({"extra_body": {"structured_outputs": {"choice": ["joy"]}}}, "structured_outputs"),
    ],
    ids=str,
)
def test_what_is_left_out_of_the_suite_is_refused_by_name(
    scripted: OpenAI, asked: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        answered(scripted, "Hello", **asked)
    assert refused.value.param == param


def test_nothing_makes_a_compaction(scripted_stack: Stack) -> None:
    """Left out of the suite too."""
    answer = scripted_stack.http.post("/v1/responses/compact", json={"model": "production", "input": "Hello"})
    assert answer.status_code in (404, 405)
    assert answer.json()["error"]["message"]
