"""Items that clients bring, of every kind that there is here; each field understood, or refused by name."""

from collections.abc import Collection, Mapping
from typing import Any

from service.api.body import param_name
from service.domain.errors import InvalidInput
from service.domain.events import Role
from service.domain.items import CallId
from service.domain.new_items import NewCall, NewItem, NewMessage, NewOutput, NewReasoning

Path = tuple[str | int, ...]
LONGEST_CALL_ID = 64
LONGEST_NAME = 128

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_TEXT_PARTS = {
    "input_text": {"type", "text"},
    # What a client echoes of an answer that it got from us.
    "output_text": {"type", "text", "annotations", "logprobs"},
}
_OF_REASONING = {"content": "reasoning_text", "summary": "summary_text"}


def parse_items(items: list[Any], param: str) -> tuple[NewItem, ...]:
    """Raises: InvalidInput: naming the part."""
    return tuple(_item(item, (param, number)) for number, item in enumerate(items))


def _item(item: object, path: Path) -> NewItem:
    if not isinstance(item, dict):
        raise InvalidInput(f"'{param_name(path)}' must be an item's object.", param_name(path))
    match item.get("type", "message"):
        case "message":
            return _message(item, path)
        case "function_call":
            return _call(item, path)
        case "function_call_output":
            return _output(item, path)
        case "reasoning":
            return _reasoning(item, path)
        case kind:
            name = param_name((*path, "type"))
            raise InvalidInput(
                f"'{name}' is {kind!r}; only messages of text, function calls and their outputs, and reasoning "
                "are supported.",
                name,
                "unsupported_item",
            )


def _message(item: Mapping[str, Any], path: Path) -> NewMessage:
    _check_fields(item, {"role", "content"}, path)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        name = param_name((*path, "role"))
        raise InvalidInput(f"'{name}' must be one of {', '.join(_ROLES)}.", name)
    return NewMessage(role=_ROLES[role], text=_text(item.get("content"), (*path, "content")))


def _call(item: Mapping[str, Any], path: Path) -> NewCall:
    _check_fields(item, {"call_id", "name", "arguments"}, path)
    return NewCall(
        call=_call_id(item, path),
        function=_string(item, "name", path, most=LONGEST_NAME),
        arguments=_string(item, "arguments", path, least=0),
    )


def _output(item: Mapping[str, Any], path: Path) -> NewOutput:
    _check_fields(item, {"call_id", "output"}, path)
    return NewOutput(
        call=_call_id(item, path), output=_text(item.get("output"), (*path, "output"), empty=True)
    )


def _reasoning(item: Mapping[str, Any], path: Path) -> NewReasoning:
    """Its text, or else what was summed up of it."""
    _check_fields(item, set(_OF_REASONING), path)
    texts = {field: _reasoned(item.get(field), kind, (*path, field)) for field, kind in _OF_REASONING.items()}
    return NewReasoning(text=texts["content"] or texts["summary"])


def _reasoned(parts: object, kind: str, path: Path) -> str:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise InvalidInput(f"'{param_name(path)}' must be a list of parts.", param_name(path))
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != kind or not isinstance(part.get("text"), str):
            name = param_name((*path, number))
            raise InvalidInput(f"'{name}' must be an object of type '{kind}' with a 'text'.", name)
    return "\n".join(part["text"] for part in parts)


def _check_fields(item: Mapping[str, Any], known: Collection[str], path: Path) -> None:
    """Ids and states are ours to give: those that a client echoes are passed over."""
    for key, value in item.items():
        if key not in {"type", "id", "status", *known} and value is not None:
            name = param_name((*path, key))
            raise InvalidInput(f"Unsupported parameter: '{name}'.", name, "unsupported_parameter")


def _call_id(item: Mapping[str, Any], path: Path) -> CallId:
    return CallId(_string(item, "call_id", path, most=LONGEST_CALL_ID))


def _string(
    item: Mapping[str, Any], field: str, path: Path, *, least: int = 1, most: int | None = None
) -> str:
    value, name = item.get(field), param_name((*path, field))
    if value is None:
        raise InvalidInput(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    if not isinstance(value, str) or len(value) < least or (most is not None and len(value) > most):
        length = f" of at least {least}" if most is None else f" of {least} to {most}"
        raise InvalidInput(f"'{name}' must be a string{length} characters.", name)
    return value


def _text(content: object, path: Path, *, empty: bool = False) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not (content or empty):
        name = param_name(path)
        raise InvalidInput(f"'{name}' must be a string or a list of text parts.", name)
    return "\n".join(_part(part, (*path, number)) for number, part in enumerate(content))


def _part(part: object, path: Path) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in _TEXT_PARTS:
        name = param_name((*path, "type"))
        raise InvalidInput(
            f"'{name}' is {kind!r}; only 'input_text' and 'output_text' are supported.",
            name,
            "unsupported_item",
        )
    for key in part:
        # An answer's annotations come from tools that OpenAI runs: what is echoed of ours has none.
        unknown = key not in _TEXT_PARTS[kind] and part[key] is not None
        if unknown or (key == "annotations" and part[key]):
            name = param_name((*path, key))
            raise InvalidInput(f"Unsupported parameter: '{name}'.", name, "unsupported_parameter")
    if not isinstance(part.get("text"), str):
        name = param_name((*path, "text"))
        raise InvalidInput(f"'{name}' must be a string.", name)
    text: str = part["text"]
    return text
