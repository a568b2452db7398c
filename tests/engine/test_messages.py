"""Items as messages: what an answer was taken apart to is one message again, and no message crosses the window's end."""

import json
from typing import Any

from service.domain.conversation import Item
from service.domain.events import ItemId, Role, TurnAsked, TurnId
from service.domain.items import CallId, ItemKind
from service.engine.messages import as_messages, wanted

USER = Item(id=ItemId("msg_1"), role=Role.USER, text="hi")
THOUGHT = Item(id=ItemId("rs_1"), role=Role.ASSISTANT, text="hm", kind=ItemKind.REASONING)
SAID = Item(id=ItemId("msg_2"), role=Role.ASSISTANT, text="yes")


def call(number: int) -> Item:
    return Item(
        id=ItemId(f"fc_{number}"),
        role=Role.ASSISTANT,
        text="{}",
        kind=ItemKind.FUNCTION_CALL,
        call=CallId(f"call_{number}"),
        function="f",
    )


def output(number: int) -> Item:
    return Item(
        id=ItemId(f"fco_{number}"),
        role=Role.TOOL,
        text="out",
        kind=ItemKind.FUNCTION_CALL_OUTPUT,
        call=CallId(f"call_{number}"),
    )


def told(number: int) -> dict[str, Any]:
    return {"id": f"call_{number}", "name": "f", "arguments": "{}"}


def test_reasoning_a_message_and_calls_are_one_message() -> None:
    messages, _ = as_messages([USER, THOUGHT, SAID, call(1), call(2), output(1), output(2)])
    assert messages == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "reasoning": "hm", "calls": [told(1), told(2)]},
        {"role": "tool", "content": "out", "call_id": "call_1"},
        {"role": "tool", "content": "out", "call_id": "call_2"},
    ]


def test_a_second_message_and_what_is_reasoned_next_begin_another() -> None:
    messages, _ = as_messages([SAID, SAID, call(1), THOUGHT, SAID])
    assert messages == [
        {"role": "assistant", "content": "yes"},
        {"role": "assistant", "content": "yes", "calls": [told(1)]},
        {"role": "assistant", "content": "yes", "reasoning": "hm"},
    ]


def test_what_the_window_holds_is_joined_with_nothing_after_it() -> None:
    messages, covered = as_messages([USER, THOUGHT, call(1), SAID], covered=2)
    assert covered == 2
    assert messages[1] == {"role": "assistant", "content": "", "reasoning": "hm"}
    assert as_messages([USER, THOUGHT, call(1), SAID], covered=3)[1] == 2


def test_what_is_wanted_is_said_as_chat_completions_have_it() -> None:
    tool: dict[str, Any] = {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": {},
        "strict": True,
    }
    schema: dict[str, Any] = {
        "type": "json_schema",
        "name": "x",
        "description": None,
        "schema": {},
        "strict": False,
    }
    asked = TurnAsked(
        turn=TurnId("resp_1"),
        tools=json.dumps([tool]),
        tool_choice='{"type": "function", "name": "f"}',
        text_format=json.dumps(schema),
        parallel_tool_calls=False,
    )
    assert wanted(asked) == {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {}, "strict": False},
        },
    }


def test_nothing_is_said_where_nothing_is_wanted() -> None:
    assert wanted(None) == {}
    assert wanted(TurnAsked(turn=TurnId("resp_1"), tools="", tool_choice="", text_format="")) == {}
