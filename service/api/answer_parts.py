"""What an answer consists of: one message, or whatever the engine's own parsers find in what the model wrote."""

import json
from collections.abc import Sequence
from dataclasses import replace

from service.domain import telling
from service.domain.events import ItemId, TurnId, TurnParsed
from service.domain.items import ItemKind, Part
from service.engine.protocol import Parsed


def parts_of(
    turn: TurnId, attempt: int, message: ItemId, parsed: Parsed, *, written: str, told: str
) -> TurnParsed:
    """Args:
    message: the id of the first message, if there is one; the other ids follow from the turn's too.
    written: is the message, where nothing was found in it.
    told: the line that a stream of it was told, which what is stored never contradicts.
    """
    shown = telling.parts(told)
    parts = _going_on(shown, _found(parsed, written), written) or shown
    names = telling.Ids(turn, message).all(part.kind for part in parts)
    return TurnParsed(
        turn=turn,
        attempt=attempt,
        items=tuple(name.item for name in names),
        parts=tuple(replace(part, call=name.call) for part, name in zip(parts, names, strict=True)),
        reasoning_tokens=parsed.reasoning_tokens,
    )


def said(parts: Sequence[Part]) -> str:
    """The text of the answer's messages."""
    return "".join(part.text for part in parts if part.kind is ItemKind.MESSAGE)


def _found(parsed: Parsed, written: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    if parsed.reasoning:
        parts.append(Part(kind=ItemKind.REASONING, text=parsed.reasoning))
    text = parsed.content or ("" if parts or parsed.calls else written)
    if text or not (parts or parsed.calls):
        parts.append(Part(kind=ItemKind.MESSAGE, text=text))
    for function, arguments in parsed.calls:
        parts.append(Part(kind=ItemKind.FUNCTION_CALL, text=arguments, function=function))
    return tuple(parts)


def _going_on(shown: Sequence[Part], found: Sequence[Part], written: str) -> tuple[Part, ...] | None:
    """What was found, spelled as it was shown; None where that does not begin with what was shown."""
    if len(shown) > len(found):
        return None
    pairs = list(zip(shown, found, strict=False))
    told = [_spelled(one, other) for one, other in pairs]
    if told and told[-1] is None:
        told[-1] = _finished(*pairs[-1], written)
    agreed = [part for part in told if part is not None]
    return (*agreed, *found[len(agreed) :]) if len(agreed) == len(told) else None


def _spelled(shown: Part, found: Part) -> Part | None:
    """None where they differ in more than blanks around them, or how their JSON is written."""
    if not _is_same(shown, found):
        return None
    if shown.text == found.text:
        return found
    if shown.kind is not ItemKind.FUNCTION_CALL:
        return shown if shown.text.strip() == found.text.strip() else None
    meant = _meaning(shown.text)
    return shown if meant is not None and meant == _meaning(found.text) else None


def _finished(shown: Part, found: Part, written: str) -> Part | None:
    """Of the last item more may have been found than was shown: in the same spelling, or in the one that the model wrote."""
    if not _is_same(shown, found):
        return None
    if found.text.startswith(shown.text):
        return found
    meant = _meaning(found.text) if shown.kind is ItemKind.FUNCTION_CALL and shown.text else None
    start = -1 if meant is None else written.find(shown.text)
    while start >= 0:
        end = _end_of_json(written, start)
        if end is not None and _meaning(written[start:end]) == meant:
            return replace(shown, text=written[start:end])
        start = written.find(shown.text, start + 1)
    return None


def _is_same(shown: Part, found: Part) -> bool:
    return (shown.kind, shown.function) == (found.kind, found.function)


def _meaning(arguments: str) -> str | None:
    """In one spelling; None where it is no JSON."""
    try:
        return json.dumps(json.loads(arguments))
    except (ValueError, RecursionError):
        return None


def _end_of_json(text: str, start: int) -> int | None:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
