"""What in a conversation waits for an answer."""

from collections.abc import Sequence

from service.domain.conversation import Item
from service.domain.events import Role
from service.domain.items import ItemKind


def unanswered(items: Sequence[Item]) -> tuple[Item, ...]:
    """What was said after the last of the model's words, whoever brought those."""
    start = len(items)
    while start > 0 and items[start - 1].role is not Role.ASSISTANT:
        start -= 1
    return tuple(items[start:])


def wants_answer(item: Item) -> bool:
    said = item.kind is ItemKind.MESSAGE and item.role is Role.USER and bool(item.text.strip())
    return said or item.kind is ItemKind.FUNCTION_CALL_OUTPUT


def waits_for_answer(items: Sequence[Item]) -> bool:
    """Of all of a conversation's."""
    return any(map(wants_answer, unanswered(items)))
