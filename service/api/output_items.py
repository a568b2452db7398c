"""OpenAI's objects of items other than messages."""

from typing import Any

from service.domain.conversation import Item


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
