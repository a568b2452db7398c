"""Messages of chat completions as items, and what is wrong with them under the names that they were sent by."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.api.items import parse_items
from service.domain.errors import InvalidInput
from service.domain.new_items import NewItem

ITEMS = "items"
OF_TOOL_MESSAGES = {"call_id": "tool_call_id", "output": "content"}
OF_CALLS = {"call_id": "id", "name": "function.name", "arguments": "function.arguments"}
OF_BODIES = {
    "input": "messages",
    "text.format": "response_format",
    "text.format.schema": "response_format.json_schema.schema",
}
"""What a turn calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatItem:
    """`place` is where it was sent, as `messages[0]`; `names` what its fields were called there."""

    item: NewItem
    place: str
    names: Mapping[str, str]

    def named(self, name: str) -> str:
        return f"{self.place}.{self.names.get(name, name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What becomes one item."""

    document: object
    place: str
    names: Mapping[str, str] = field(default_factory=dict)


def parse_messages(messages: list[Any]) -> tuple[ChatItem, ...]:
    """Raises: InvalidInput: naming the part as it was sent."""
    parts = (
        part for number, message in enumerate(messages) for part in _parts(message, f"messages[{number}]")
    )
    return tuple(ChatItem(item=_item(part), place=part.place, names=part.names) for part in parts)


def named_as_sent(error: InvalidInput, items: tuple[ChatItem, ...]) -> InvalidInput:
    """What is wrong with a turn, said of the chat completion that it is run for."""
    found = re.fullmatch(r"input\[(\d+)\]\.(\w+)", error.param or "")
    if found is not None:
        return renamed(error, items[int(found[1])].named(found[2]))
    return renamed(error, OF_BODIES.get(error.param or "", error.param))


def renamed(error: InvalidInput, param: str | None) -> InvalidInput:
    return InvalidInput(error.message.replace(f"'{error.param}'", f"'{param}'"), param, error.code)


def flat(given: object, kind: str) -> object:
    """Chat completions put under a key of its own what Responses have beside the type."""
    if isinstance(given, dict) and isinstance(given.get(kind), dict):
        return {key: value for key, value in given.items() if key != kind} | given[kind]
    return given


def _item(part: _Part) -> NewItem:
    try:
        [item] = parse_items([part.document], ITEMS)
    except InvalidInput as error:
        found = re.fullmatch(r"items\[0\](?:\.(\w+)(.*))?", error.param or "")
        if found is None:
            raise
        inner = "" if found[1] is None else f".{part.names.get(found[1], found[1])}{found[2]}"
        named = renamed(error, part.place + inner)
        words = named.message.replace("only 'input_text' and 'output_text' are", "only 'text' is")
        raise InvalidInput(words, named.param, named.code) from error
    return item


def _parts(message: object, place: str) -> Iterator[_Part]:
    """Each is a message of its own in Responses: what was said, and each call. Answers carry empty fields of all kinds back."""
    if not isinstance(message, dict):
        yield _Part(document=message, place=place)
        return
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    if "name" in kept:
        raise InvalidInput(
            f"'{place}.name' is not supported: items have no names, and few chat templates would show one. "
            f"Say in '{place}.content' who speaks.",
            f"{place}.name",
            "unsupported_parameter",
        )
    if isinstance(kept.get("content"), list):
        kept["content"] = [
            part | {"type": "input_text"} if isinstance(part, dict) and part.get("type") == "text" else part
            for part in kept["content"]
        ]
    if kept.get("role") == "tool":
        more = {key: value for key, value in kept.items() if key not in {"role", "content", "tool_call_id"}}
        output = {"call_id": kept.get("tool_call_id"), "output": kept.get("content", "")}
        document = more | {"type": "function_call_output"} | output
        yield _Part(document=document, place=place, names=OF_TOOL_MESSAGES)
        return
    calls = kept.pop("tool_calls", [])
    if not isinstance(calls, list):
        raise InvalidInput(f"'{place}.tool_calls' must be a list of calls.", f"{place}.tool_calls")
    if kept.get("content") or not calls:
        yield _Part(document=kept, place=place)
    for number, call in enumerate(calls):
        yield _call(call, f"{place}.tool_calls[{number}]")


def _call(call: object, place: str) -> _Part:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        return _Part(document=call, place=place)
    inner = flat(call, "function")
    assert isinstance(inner, dict)  # noqa: S101 as it was
    names = {key: f"function.{key}" for key in inner if key not in call} | OF_CALLS
    return _Part(
        document={**inner, "type": "function_call", "call_id": call.get("id"), "id": None},
        place=place,
        names=names,
    )
