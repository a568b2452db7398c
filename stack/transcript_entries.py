"""The messages of a transcript, as chat completions or as Responses have them, function calls and their outputs among them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from stack.errors import StackError

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text")
GIVEN_BY_THE_SERVICE = ("id", "status")
"""Of items that were read from one: here they get others."""
LONGEST_CALL_ID = 64
LONGEST_FUNCTION = 128


class BadLine(StackError): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    call: str
    function: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    call: str
    output: str


Entry = Message | Call | Output


def as_item(entry: Entry) -> dict[str, str]:
    """As it is sent to the service."""
    match entry:
        case Message():
            return {"type": "message", "role": entry.role, "content": entry.text}
        case Call():
            call = {"call_id": entry.call, "name": entry.function, "arguments": entry.arguments}
            return {"type": "function_call", **call}
        case Output():
            return {"type": "function_call_output", "call_id": entry.call, "output": entry.output}
        case _:
            assert_never(entry)


def is_same(item: Mapping[str, Any], entry: Entry) -> bool:
    """Args: item: as the service has it."""
    wanted = as_item(entry)
    if isinstance(entry, Message):
        role = "system" if entry.role == "developer" else entry.role
        text = "".join(part.get("text", "") for part in item.get("content", ()))
        return (item["type"], item.get("role"), text) == ("message", role, entry.text)
    return all(item.get(name) == value for name, value in wanted.items())


def entries(messages: Sequence[object]) -> tuple[Entry, ...]:
    """Raises: BadLine: naming the field."""
    told: list[Entry] = []
    calls = _Calls()
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        for entry in _entries(message, place):
            calls.take(entry, place)
            told.append(entry)
    return tuple(told)


class _Calls:
    """What every turn after these would ask of them: each output has its call, and each call its output before other words."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._open: set[str] = set()

    def take(self, entry: Entry, place: str) -> None:
        match entry:
            case Call():
                if entry.call in self._made:
                    raise BadLine(f"'{place}' makes the call '{entry.call}' again: each has an id of its own")
                self._made.add(entry.call)
                self._open.add(entry.call)
            case Output():
                if entry.call not in self._open:
                    raise BadLine(
                        f"'{place}' is the output of '{entry.call}', which no call before it waits for"
                    )
                self._open.remove(entry.call)
            case Message():
                if self._open and entry.role != "assistant":
                    raise BadLine(f"'{place}' comes before the output of call '{min(self._open)}'")
            case _:
                assert_never(entry)


def _entries(message: object, place: str) -> Iterator[Entry]:
    if not isinstance(message, dict):
        raise BadLine(f"'{place}' must be an object with 'role' and 'content'")
    match message.get("type", "message"):
        case "function_call":
            _check(message, place, "type", "call_id", "name", "arguments", *GIVEN_BY_THE_SERVICE)
            yield _call(message, message.get("call_id"), place)
        case "function_call_output":
            _check(message, place, "type", "call_id", "output", *GIVEN_BY_THE_SERVICE)
            call = _string(message.get("call_id"), f"{place}.call_id", LONGEST_CALL_ID)
            yield Output(call=call, output=_text(message.get("output"), f"{place}.output"))
        case "message" if message.get("role") == "tool":
            _check(message, place, "type", "role", "tool_call_id", "content", "name")
            call = _string(message.get("tool_call_id"), f"{place}.tool_call_id", LONGEST_CALL_ID)
            yield Output(call=call, output=_text(message.get("content"), f"{place}.content"))
        case "message":
            yield from _said(message, place)
        case kind:
            raise BadLine(
                f"'{place}.type' is {kind!r}: messages, function calls and their outputs can be imported"
            )


def _said(message: Mapping[str, Any], place: str) -> Iterator[Entry]:
    role = message.get("role")
    if role not in ROLES:
        raise BadLine(f"'{place}.role' is {role!r}, not one of {', '.join((*ROLES, 'tool'))}")
    calls = message.get("tool_calls") or ()
    known = ("tool_calls",) if role == "assistant" else ()
    _check(
        message,
        place,
        "type",
        "role",
        "content",
        *known,
        *(GIVEN_BY_THE_SERVICE if "type" in message else ()),
    )
    if message.get("content") or not calls:
        yield Message(role=role, text=_text(message.get("content"), f"{place}.content"))
    if not isinstance(calls, list | tuple):
        raise BadLine(f"'{place}.tool_calls' must be a list")
    for number, call in enumerate(calls):
        where = f"{place}.tool_calls[{number}]"
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise BadLine(f"'{where}' must be an object with 'id' and 'function'")
        if call.get("type", "function") != "function":
            raise BadLine(f"'{where}.type' is {call['type']!r}: only calls of functions can be imported")
        _check(call, where, "id", "type", "function", "index")
        _check(call["function"], f"{where}.function", "name", "arguments")
        yield _call(call["function"], call.get("id"), where)


def _call(function: Mapping[str, Any], call: object, place: str) -> Call:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise BadLine(f"'{place}' must have 'arguments' that are a string of JSON")
    return Call(
        call=_string(call, f"the id of {place}", LONGEST_CALL_ID),
        function=_string(function.get("name"), f"{place}.name", LONGEST_FUNCTION),
        arguments=arguments,
    )


def _check(given: Mapping[str, Any], place: str, *known: str) -> None:
    for name, value in given.items():
        if name not in known and value not in (None, [], ""):
            raise BadLine(f"'{place}.{name}' cannot be imported: there are {', '.join(known)}")


def _string(value: object, place: str, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise BadLine(f"'{place}' must be a string of 1 to {most} characters")
    return value


def _text(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadLine(f"'{place}' must be a string or a list of text parts")
    for at, part in enumerate(content):
        if (
            not isinstance(part, dict)
            or part.get("type") not in TEXT_PARTS
            or not isinstance(part.get("text"), str)
        ):
            raise BadLine(f'\'{place}[{at}]\' is no text: a part is {{"type": "text", "text": …}}')
    return "\n".join(part["text"] for part in content)
