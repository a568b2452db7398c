"""The text side of a simulated engine: letters for tokens, tools and calls in tags, and parsers that find them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

SYSTEM, USER, ASSISTANT, STOP, TOOL = 1, 2, 3, 4, 5
ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
FIRST_LETTER = 10
REASONING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
CALL = re.compile(r"<call>(.*?)</call>", re.DOTALL)


def letter(character: str) -> int:
    return FIRST_LETTER + ord(character)


def letters(text: str) -> list[int]:
    return [letter(character) for character in text]


def render(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """With the start of the answer last."""
    ids = [SYSTEM, *letters(json.dumps(list(tools))), STOP] if tools else []
    ids += [i for m in messages for i in (ROLES[m["role"]], *letters(written(m)), STOP)]
    return [*ids, ASSISTANT]


def written(message: Mapping[str, Any]) -> str:
    reasoning = f"<think>{message['reasoning']}</think>" if message.get("reasoning") else ""
    calls = "".join(called(call["name"], call["arguments"]) for call in message.get("calls", ()))
    return f"{reasoning}{message['content']}{calls}"


def called(name: str, arguments: str) -> str:
    return f"<call>{name} {arguments}</call>"


def form(body: Mapping[str, Any], *, reasons: bool) -> dict[str, Any]:
    """As the middleware says how the answer is to be made."""
    wants_calls = bool(body.get("tools")) and body["tool_choice"] != "none"
    wanted = body.get("response_format") or (body["tool_choice"] if wants_calls else None)
    return {
        "structured_outputs": None if wanted in (None, "auto") else {"json": json.dumps(wanted)},
        "skip_special_tokens": not wants_calls,
        "parsed": wants_calls or reasons,
    }


def parse(body: Mapping[str, Any]) -> dict[str, Any]:
    text = body["text"]
    reasoning = "".join(REASONING.findall(text))
    rest = REASONING.sub("", text)
    calls = [found.partition(" ") for found in CALL.findall(rest)] if body.get("tools") else []
    return {
        "reasoning": reasoning or None,
        "reasoning_tokens": len(reasoning),
        "content": (CALL.sub("", rest) if calls else rest) or None,
        "calls": [{"name": name, "arguments": arguments} for name, _, arguments in calls],
    }
