"""What a transcript is made of: words, function calls, their outputs and reasoning, as this service takes and shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from stack.errors import StackError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    text: str


Entry = Message | Call | Output | Reasoning


def as_item(entry: Entry) -> dict[str, Any]:
    """As it is sent to the service."""
    match entry:
        case Message():
            return {"type": "message", "role": entry.role, "content": entry.text}
        case Call():
            call = {"call_id": entry.call, "name": entry.function, "arguments": entry.arguments}
            return {"type": "function_call", **call}
        case Output():
            return {"type": "function_call_output", "call_id": entry.call, "output": entry.output}
        case Reasoning():
            content = [{"type": "reasoning_text", "text": entry.text}]
            return {"type": "reasoning", "summary": [], "content": content}
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


class OpenCalls:
    """What every turn after these would ask of them: each output has its call, and each call its output before other words."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._open: set[str] = set()

    def take(self, entry: Entry, place: str) -> None:
        """Raises: BadLine: it cannot stand at this place."""
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
            case Reasoning():
                pass
            case _:
                assert_never(entry)
