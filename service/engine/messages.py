"""Items as the messages of a chat, and what a request wants as chat completions have it: how engines take both."""

import json
from collections.abc import Sequence
from typing import Any

from service.domain.conversation import Item
from service.domain.events import Role, TurnAsked
from service.domain.items import ItemKind


def as_messages(items: Sequence[Item], covered: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Args:
    covered: how many leading items a window holds; no message has some of these and some of the others.

    Returns:
        The messages, and how many of them the window holds.
    """
    before = _joined(items[:covered])
    return [*before, *_joined(items[covered:])], len(before)


def wanted(asked: TurnAsked | None) -> dict[str, Any]:
    """Nothing at all where nothing is asked for: a plain request is what it always was."""
    if asked is None:
        return {}
    body: dict[str, Any] = {}
    if asked.tools:
        body["tools"] = [_tool(tool) for tool in json.loads(asked.tools)]
        body["tool_choice"] = _choice(json.loads(asked.tool_choice or '"auto"'))
        body["parallel_tool_calls"] = asked.parallel_tool_calls
    if asked.text_format:
        body["response_format"] = _format(json.loads(asked.text_format))
    return body


def _joined(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Reasoning, a message and function calls that follow each other are one message of the assistant's."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.kind is ItemKind.FUNCTION_CALL_OUTPUT:
            messages.append({"role": Role.TOOL.value, "content": item.text, "call_id": item.call})
        elif item.role is not Role.ASSISTANT:
            messages.append({"role": item.role.value, "content": item.text})
        elif messages and _goes_on(messages[-1], item.kind):
            _add(messages[-1], item)
        else:
            messages.append({"role": Role.ASSISTANT.value, "content": ""})
            _add(messages[-1], item)
    return messages


def _goes_on(message: dict[str, Any], kind: ItemKind) -> bool:
    if message["role"] != Role.ASSISTANT.value:
        return False
    if kind is ItemKind.FUNCTION_CALL:
        return True
    # A message after another, or after calls, is one of its own; so is whatever is reasoned next.
    return kind is ItemKind.MESSAGE and not message["content"] and not message.get("calls")


def _add(message: dict[str, Any], item: Item) -> None:
    match item.kind:
        case ItemKind.FUNCTION_CALL:
            call = {"id": item.call, "name": item.function, "arguments": item.text}
            message["calls"] = [*message.get("calls", ()), call]
        case ItemKind.REASONING:
            message["reasoning"] = item.text
        case _:
            message["content"] = item.text


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    known = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {key: tool[key] for key in known if tool.get(key) is not None}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(form: dict[str, Any]) -> dict[str, Any]:
    if form["type"] != "json_schema":
        return {"type": form["type"]}
    known = ("name", "description", "schema", "strict")
    return {
        "type": "json_schema",
        "json_schema": {key: form[key] for key in known if form.get(key) is not None},
    }
