"""OpenAI's objects of items other than messages, and the stream events that each is told by."""

from collections.abc import Iterator
from typing import Any

from service.domain.conversation import Item

Told = tuple[str, dict[str, Any]]
"""Name and fields of an event."""


def call_object(item: Item, status: str) -> dict[str, Any]:
    return {
        "id": item.id,
        "type": "function_call",
        "status": status,
        "call_id": item.call,
        "name": item.function,
        "arguments": item.text,
    }


def call_output_object(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "type": "function_call_output",
        "status": "completed",
        "call_id": item.call,
        "output": item.text,
    }


def reasoning_object(item: Item, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": item.text}] if item.text else []
    return {"id": item.id, "type": "reasoning", "status": status, "summary": [], "content": content}


def call_events(item: Item, index: int, status: str) -> Iterator[Told]:
    place = {"item_id": item.id, "output_index": index}
    begun = call_object(item, "in_progress") | {"arguments": ""}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.function_call_arguments.delta", place | {"delta": item.text}
    done = place | {"name": item.function, "arguments": item.text}
    yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"output_index": index, "item": call_object(item, status)}


def reasoning_events(item: Item, index: int, status: str) -> Iterator[Told]:
    place = {"item_id": item.id, "output_index": index, "content_index": 0}
    begun = reasoning_object(item, "in_progress") | {"content": []}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.content_part.added", place | {"part": {"type": "reasoning_text", "text": ""}}
    yield "response.reasoning_text.delta", place | {"delta": item.text}
    yield "response.reasoning_text.done", place | {"text": item.text}
    yield "response.content_part.done", place | {"part": {"type": "reasoning_text", "text": item.text}}
    yield "response.output_item.done", {"output_index": index, "item": reasoning_object(item, status)}
