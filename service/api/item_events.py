"""The stream events that an item of an answer is told by, in OpenAI's order: that it begins, more of it, and that it is over."""

from collections.abc import Iterator
from typing import Any

from service.api.output_items import call_object, reasoning_object
from service.api.response_object import output_message, output_object, output_text
from service.domain.conversation import Item
from service.domain.events import TurnScored
from service.domain.items import ItemKind

Told = tuple[str, dict[str, Any]]
"""Name and fields of an event."""

UNTIL_THE_END = frozenset(
    {
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
    }
)
"""Those that say nothing which the others of the same item do not say again."""


def begun(item: Item, index: int) -> Iterator[Told]:
    """Args: item: its text is not looked at."""
    match item.kind:
        case ItemKind.FUNCTION_CALL:
            shown = call_object(item, "in_progress") | {"arguments": ""}
        case ItemKind.REASONING:
            shown = reasoning_object(item, "in_progress") | {"content": []}
        case _:
            shown = output_message(item.id, "in_progress", [])
    yield "response.output_item.added", {"output_index": index, "item": shown}
    if item.kind is not ItemKind.FUNCTION_CALL:
        yield "response.content_part.added", _part_place(item, index) | {"part": _part(item, "", None)}


def more(item: Item, index: int, text: str) -> Told:
    fields = {"item_id": item.id, "output_index": index}
    if item.kind is ItemKind.FUNCTION_CALL:
        return "response.function_call_arguments.delta", fields | {"delta": text}
    fields |= {"content_index": 0, "delta": text}
    if item.kind is ItemKind.REASONING:
        return "response.reasoning_text.delta", fields
    return "response.output_text.delta", fields | {"logprobs": []}


def over(item: Item, index: int, status: str, scored: TurnScored | None) -> Iterator[Told]:
    if item.kind is ItemKind.FUNCTION_CALL:
        whole = {"name": item.function, "arguments": item.text}
        yield "response.function_call_arguments.done", _place(item, index) | whole
    else:
        part, place = _part(item, item.text, scored), _part_place(item, index)
        if item.kind is ItemKind.REASONING:
            yield "response.reasoning_text.done", place | {"text": item.text}
        else:
            said = {"text": item.text, "logprobs": part["logprobs"]}
            yield "response.output_text.done", place | said
        yield "response.content_part.done", place | {"part": part}
    ended = {"output_index": index, "item": output_object(item, status, scored)}
    yield "response.output_item.done", ended


def _part(item: Item, text: str, scored: TurnScored | None) -> dict[str, Any]:
    if item.kind is ItemKind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return output_text(text, scored)


def _place(item: Item, index: int) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": index}


def _part_place(item: Item, index: int) -> dict[str, Any]:
    return _place(item, index) | {"content_index": 0}
