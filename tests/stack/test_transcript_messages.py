"""What messages from elsewhere become, in each of the forms that they come in."""

import json
from pathlib import Path
from typing import Any

import pytest

from stack.transcript_entries import BadLine, Call, Entry, Message, Output, Reasoning, as_item, is_same
from stack.transcript_messages import read_messages
from tests.api.test_contract import breaches

OPENAI_ITEMS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("exports").joinpath("openai_items.json").read_text("utf-8")
)
"""Of a conversation with a model that reasons, calls a tool, cites and refuses."""
TALKED: tuple[Entry, ...] = (
    Message(role="developer", text="Be brief."),
    Message(role="user", text="Do I need a coat in Rome?"),
    Message(role="assistant", text="Let me look at the weather."),
    Call(call="call_ppX1", function="get_weather", arguments='{"city":"Rome"}'),
    Output(call="call_ppX1", output='{"sky":"clear","celsius":24}'),
    Reasoning(text="**Choosing clothes**\n24 degrees and a clear sky."),
    Message(role="assistant", text="No. It is 24 °C and clear."),
    Message(role="user", text="Whose coat\ncan I take?"),
    Message(role="assistant", text="I cannot help with that."),
)
CALL = {"type": "function", "id": "call_1", "function": {"name": "get_rain", "arguments": "{}"}}
CALLED = Call(call="call_1", function="get_rain", arguments="{}")
SUMMED_UP = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Rain?"}]}
ECHOED = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_rain", "arguments": "{}"}


def told(*messages: object) -> tuple[Entry, ...]:
    return read_messages(messages)[0]


def test_the_export_of_openais_conversations_is_one_that_their_specification_has() -> None:
    for item in OPENAI_ITEMS:
        assert breaches("ConversationItem", item) == []


def test_an_export_of_openais_conversations_is_read_and_what_has_no_place_is_counted() -> None:
    entries, left_out = read_messages(OPENAI_ITEMS)
    assert entries == TALKED
    assert left_out == {"encrypted_content": 1, "phase": 3, "annotations": 1}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "It rains."}], "summary": []}, "It rains."),
        ({"content": [], "summary": [{"type": "summary_text", "text": "Rain."}]}, "Rain."),
        (
            {
                "content": [{"type": "reasoning_text", "text": "It rains."}],
                "summary": [{"type": "summary_text", "text": "Rain."}],
            },
            "It rains.",
        ),
    ],
)
def test_reasoning_is_its_words_or_else_what_was_summed_up_of_it(item: dict[str, Any], text: str) -> None:
    assert told({"type": "reasoning", "id": "rs_1", "status": "completed", **item}) == (Reasoning(text=text),)


@pytest.mark.parametrize("item", [{}, {"summary": []}, {"summary": [], "content": None}])
def test_reasoning_without_words_is_no_item(item: dict[str, Any]) -> None:
    assert told({"type": "reasoning", **item}) == ()


def test_reasoning_may_stand_between_a_call_and_its_output() -> None:
    output = {"role": "tool", "tool_call_id": "call_1", "content": "no"}
    assert told({"role": "assistant", "tool_calls": [CALL]}, SUMMED_UP, output) == (
        CALLED,
        Reasoning(text="Rain?"),
        Output(call="call_1", output="no"),
    )


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_a_speakers_name_is_left_out_and_counted(role: str) -> None:
    entries, left_out = read_messages([{"role": role, "name": "ada", "content": "Hello."}])
    assert entries == (Message(role=role, text="Hello."),)
    assert left_out == {"name": 1}


def test_the_name_of_a_function_beside_its_output_is_not_lost_and_not_counted() -> None:
    output = {"role": "tool", "tool_call_id": "call_1", "name": "get_rain", "content": "no"}
    entries, left_out = read_messages([{"role": "assistant", "tool_calls": [CALL]}, output])
    assert entries == (CALLED, Output(call="call_1", output="no"))
    assert left_out == {}


@pytest.mark.parametrize(
    "part",
    [
        SUMMED_UP,
        {"type": "reasoning", "reasoning": "Rain?"},
        {"type": "thinking", "thinking": "Rain?", "signature": "Eu…"},
    ],
)
def test_parts_of_langchains_messages_are_its_reasoning_its_words_and_calls_told_twice(
    part: dict[str, Any],
) -> None:
    message = {"role": "assistant", "tool_calls": [CALL]}
    content = [part, {"type": "text", "text": "Let me see."}, ECHOED]
    assert told(message | {"content": content}) == (
        Reasoning(text="Rain?"),
        Message(role="assistant", text="Let me see."),
        CALLED,
    )
    assert told(message | {"content": [part, ECHOED]}) == (Reasoning(text="Rain?"), CALLED)


def test_a_call_that_stands_in_no_tool_calls_is_not_passed_over() -> None:
    with pytest.raises(BadLine, match=r"'messages\[0\].content\[0\]' is no text"):
        told({"role": "assistant", "content": [ECHOED]})


def test_only_an_assistant_reasons() -> None:
    with pytest.raises(BadLine, match=r"'messages\[0\].content\[0\]' is no text"):
        told({"role": "user", "content": [SUMMED_UP]})


def test_a_refusal_is_what_the_assistant_said() -> None:
    said = (Message(role="assistant", text="No."),)
    assert told({"role": "assistant", "content": None, "refusal": "No."}) == said
    assert told({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}) == said


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        ({"summary": "Rain."}, "'messages[0].summary' must be a list of parts"),
        (
            {"content": [{"type": "text", "text": "x"}]},
            "'messages[0].content[0]' must be an object of type 'reasoning_text'",
        ),
        ({"effort": "high"}, "'messages[0].effort' cannot be imported"),
    ],
)
def test_reasoning_of_another_form_is_named(item: dict[str, Any], cause: str) -> None:
    with pytest.raises(BadLine) as refused:
        told({"type": "reasoning", **item})
    assert cause in str(refused.value)


def test_reasoning_is_known_again_by_its_words() -> None:
    entry = Reasoning(text="Rain?")
    stored = as_item(entry) | {"id": "rs_9", "status": "completed"}
    assert is_same(stored, entry)
    assert not is_same(stored, Reasoning(text="Snow?"))
    assert not is_same(stored, Message(role="assistant", text="Rain?"))
