"""What an answer consists of: one message, or whatever the engine's own parsers find in what the model wrote."""

from collections.abc import Sequence

from service.domain.events import ItemId, TurnId, TurnParsed
from service.domain.items import CallId, ItemKind, Part
from service.engine.protocol import Parsed


def parts_of(turn: TurnId, attempt: int, message: ItemId, parsed: Parsed, written: str) -> TurnParsed:
    """Args:
    message: the id of the message, if there is one; the other ids follow from the turn's too.
    written: is the message, where nothing was found in it.
    """
    name = turn.removeprefix("resp_")
    items: list[ItemId] = []
    parts: list[Part] = []
    if parsed.reasoning:
        items.append(ItemId(f"rs_{name}"))
        parts.append(Part(kind=ItemKind.REASONING, text=parsed.reasoning))
    text = parsed.content or ("" if parts or parsed.calls else written)
    if text or not (parts or parsed.calls):
        items.append(message)
        parts.append(Part(kind=ItemKind.MESSAGE, text=text))
    for number, (function, arguments) in enumerate(parsed.calls, 1):
        items.append(ItemId(f"fc_{name}{number}"))
        parts.append(_call(CallId(f"call_{name}{number}"), function, arguments))
    return TurnParsed(
        turn=turn,
        attempt=attempt,
        items=tuple(items),
        parts=tuple(parts),
        reasoning_tokens=parsed.reasoning_tokens,
    )


def said(parts: Sequence[Part]) -> str:
    """The text of the answer's message."""
    return "".join(part.text for part in parts if part.kind is ItemKind.MESSAGE)


def _call(call: CallId, function: str, arguments: str) -> Part:
    return Part(kind=ItemKind.FUNCTION_CALL, text=arguments, call=call, function=function)
