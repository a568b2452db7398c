"""The text side of a simulated engine: letters for tokens, tools and calls in tags, and parsers that find them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SYSTEM, USER, ASSISTANT, STOP, TOOL = 1, 2, 3, 4, 5
ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
FIRST_LETTER = 10
Shown = tuple[str, str | None, str]
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


class ToldText:
    """Makes out what an answer is while it comes, as the parsers of an engine do: what may yet be the beginning of a tag waits."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._tags = ("<think>", "<call>") if wanted.get("tools") else ("<think>",)
        self._text = ""
        self._told: list[Shown] = []

    def add(self, more: str, *, finished: bool) -> list[Shown]:
        """Kind, function of what begins, and text: what is new."""
        self._text += more
        known, self._told = self._told, list(_shown(self._text, self._tags, finished=finished))
        fresh: list[Shown] = []
        for place, (kind, function, text) in enumerate(self._told):
            if place >= len(known):
                fresh.append((kind, function, text))
            elif len(text) > len(known[place][2]):
                fresh.append((kind, None, text[len(known[place][2]) :]))
        return fresh


def _shown(text: str, tags: Sequence[str], *, finished: bool) -> Iterator[Shown]:
    place = 0
    while place < len(text):
        start, tag = min((found if (found := text.find(one, place)) >= 0 else len(text), one) for one in tags)
        before = text[place:start]
        if start == len(text) and not finished:
            before = _without_beginning_of(tags, before)
        if before.strip():
            yield "message", None, before
        if start == len(text):
            return
        closing = tag.replace("<", "</")
        end = text.find(closing, start)
        inner = text[start + len(tag) : None if end < 0 else end]
        if end < 0:
            inner = _without_beginning_of([closing], inner)
        if tag == "<think>":
            if inner.strip():
                yield "reasoning", None, inner
        elif " " in inner:
            name, _, arguments = inner.partition(" ")
            yield "function_call", name, arguments
        place = len(text) if end < 0 else end + len(closing)


def _without_beginning_of(tags: Sequence[str], text: str) -> str:
    held = max(
        (n for tag in tags for n in range(1, len(tag)) if text.endswith(tag[:n])),
        default=0,
    )
    return text[: len(text) - held]
