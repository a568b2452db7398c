"""Reads the messages of a transcript, as chat completions, Responses or LangChain have them, and counts what is left out of them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stack.transcript_entries import BadLine, Call, Entry, Message, OpenCalls, Output, Reasoning

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts that are words, with the field that has them."""
THOUGHTS = {"content": "reasoning_text", "summary": "summary_text"}
GIVEN_BY_THE_SERVICE = ("id", "status", "created_by")
"""Of items that were read from one: here they get others."""
LEFT_OUT = ("name", "phase", "encrypted_content", "caller", "annotations", "logprobs")
"""That no prompt here has a place for."""
LONGEST_CALL_ID = 64
LONGEST_FUNCTION = 128


def read_messages(messages: Sequence[object]) -> tuple[tuple[Entry, ...], Counter[str]]:
    """Returns what they become, and of how many each field is left out.

    Raises:
        BadLine: naming the field.
    """
    told, left_out, calls = list[Entry](), Counter[str](), OpenCalls()
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        for entry in _entries(message, place, left_out):
            calls.take(entry, place)
            told.append(entry)
    return tuple(told), left_out


def _entries(message: object, place: str, left_out: Counter[str]) -> Iterator[Entry]:
    if not isinstance(message, dict):
        raise BadLine(f"'{place}' must be an object with 'role' and 'content'")
    match message.get("type", "message"):
        case "function_call":
            _check(message, place, left_out, "call_id", "name", "arguments")
            yield _call(message, message.get("call_id"), place)
        case "function_call_output":
            _check(message, place, left_out, "call_id", "output", "name")
            call = _string(message.get("call_id"), f"{place}.call_id", LONGEST_CALL_ID)
            yield Output(call=call, output=_text(message.get("output"), f"{place}.output", left_out))
        case "reasoning":
            _check(message, place, left_out, *THOUGHTS)
            yield from _reasoning(message, place)
        case "message" if message.get("role") == "tool":
            _check(message, place, left_out, "role", "tool_call_id", "content", "name")
            call = _string(message.get("tool_call_id"), f"{place}.tool_call_id", LONGEST_CALL_ID)
            yield Output(call=call, output=_text(message.get("content"), f"{place}.content", left_out))
        case "message":
            yield from _said(message, place, left_out)
        case kind:
            raise BadLine(
                f"'{place}.type' is {kind!r}: messages, function calls, their outputs and reasoning can be imported"
            )


def _said(message: Mapping[str, Any], place: str, left_out: Counter[str]) -> Iterator[Entry]:
    role = message.get("role")
    if role not in ROLES:
        raise BadLine(f"'{place}.role' is {role!r}, not one of {', '.join((*ROLES, 'tool'))}")
    of_assistants = ("tool_calls", "refusal") if role == "assistant" else ()
    _check(message, place, left_out, "role", "content", *of_assistants)
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise BadLine(f"'{place}.tool_calls' must be a list")
    made = [_tool_call(call, f"{place}.tool_calls[{number}]", left_out) for number, call in enumerate(calls)]
    content, thoughts = message.get("content") or message.get("refusal"), list[Reasoning]()
    if role == "assistant" and isinstance(content, list):
        thoughts = [one for part in content for one in _thought(part, f"{place}.content")]
        content = [part for part in content if not _is_told_elsewhere(part, made)]
    yield from thoughts
    if content or not (made or thoughts):
        yield Message(role=role, text=_text(content, f"{place}.content", left_out))
    yield from made


def _is_told_elsewhere(part: object, calls: Sequence[Call]) -> bool:
    """Of a message of LangChain: its reasoning, and the calls that stand in `tool_calls` too."""
    if not isinstance(part, dict):
        return False
    if part.get("type") == "function_call":
        return any(call.call == part.get("call_id") for call in calls)
    return part.get("type") in ("reasoning", "thinking")


def _thought(part: object, place: str) -> Iterator[Reasoning]:
    """Of OpenAI's models as LangChain keeps it, of LangChain's own form, and of Anthropic's."""
    if isinstance(part, dict) and part.get("type") in ("reasoning", "thinking"):
        words = part.get(part["type"])
        if isinstance(words, str):
            yield Reasoning(text=words)
        else:
            yield from _reasoning(part, place)


def _reasoning(item: Mapping[str, Any], place: str) -> Iterator[Reasoning]:
    """Its words, or else what was summed up of it; nothing where the one who made it keeps both to himself."""
    for field, kind in THOUGHTS.items():
        parts = item.get(field) or []
        if not isinstance(parts, list):
            raise BadLine(f"'{place}.{field}' must be a list of parts")
        for at, part in enumerate(parts):
            if (
                not isinstance(part, dict)
                or part.get("type") != kind
                or not isinstance(part.get("text"), str)
            ):
                raise BadLine(f"'{place}.{field}[{at}]' must be an object of type '{kind}' with a 'text'")
        if words := "\n".join(part["text"] for part in parts):
            yield Reasoning(text=words)
            return


def _tool_call(call: object, place: str, left_out: Counter[str]) -> Call:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise BadLine(f"'{place}' must be an object with 'id' and 'function'")
    if call.get("type", "function") != "function":
        raise BadLine(f"'{place}.type' is {call['type']!r}: only calls of functions can be imported")
    _check(call, place, left_out, "function", "index")
    _check(call["function"], f"{place}.function", left_out, "name", "arguments")
    return _call(call["function"], call.get("id"), place)


def _call(function: Mapping[str, Any], call: object, place: str) -> Call:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise BadLine(f"'{place}' must have 'arguments' that are a string of JSON")
    return Call(
        call=_string(call, f"the id of {place}", LONGEST_CALL_ID),
        function=_string(function.get("name"), f"{place}.name", LONGEST_FUNCTION),
        arguments=arguments,
    )


def _check(given: Mapping[str, Any], place: str, left_out: Counter[str], *known: str) -> None:
    for name, value in given.items():
        if name in known or name in ("type", *GIVEN_BY_THE_SERVICE) or value in (None, [], ""):
            continue
        if name not in LEFT_OUT:
            raise BadLine(f"'{place}.{name}' cannot be imported: there are {', '.join(known)}")
        left_out[name] += 1


def _string(value: object, place: str, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise BadLine(f"'{place}' must be a string of 1 to {most} characters")
    return value


def _text(content: object, place: str, left_out: Counter[str]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadLine(f"'{place}' must be a string or a list of text parts")
    return "\n".join(_part(part, f"{place}[{at}]", left_out) for at, part in enumerate(content))


def _part(part: object, place: str, left_out: Counter[str]) -> str:
    field = TEXT_PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    if not isinstance(part, dict) or field is None or not isinstance(part.get(field), str):
        raise BadLine(f'\'{place}\' is no text: a part is {{"type": "text", "text": …}}')
    left_out.update(name for name in LEFT_OUT if part.get(name))
    words: str = part[field]
    return words
