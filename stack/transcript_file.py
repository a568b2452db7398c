"""Transcripts as JSON lines: one conversation a line, `{"id"?, "metadata"?, "messages": [{"role", "content"}, …]}`."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from stack.errors import StackError

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text")
MOST_METADATA = 16
LONGEST_NAME = 64
LONGEST_VALUE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    text: str

    def as_item(self) -> dict[str, str]:
        return {"type": "message", "role": self.role, "content": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    line: int
    id: str | None
    key: str
    """Of this conversation and no other, in this file or in another: by its id, or by all that is in its line."""
    metadata: dict[str, str]
    messages: tuple[Message, ...]


class BadLine(StackError): ...


def read_transcripts(path: Path) -> Iterator[Transcript | BadLine]:
    """In the order of their lines; blank ones are passed over."""
    seen: Counter[str] = Counter()
    ids: dict[str, int] = {}
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                document = _document(raw)
                _claim(ids, document.get("id"), number)
                yield _transcript(number, document, seen)
            except BadLine as error:
                yield BadLine(f"{path}:{number}: {error}")


def _document(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadLine("not a JSON object with 'messages'")
    for name in document:
        if name not in ("id", "metadata", "messages"):
            raise BadLine(f"unknown field '{name}'; there are 'id', 'metadata' and 'messages'")
    if not (document.get("id") is None or (isinstance(document["id"], str) and document["id"])):
        raise BadLine("'id' must be a string that is not empty")
    return document


def _claim(ids: dict[str, int], name: str | None, number: int) -> None:
    if name in ids:
        raise BadLine(f"'id' {name!r} stands in line {ids[name]} already")
    if name is not None:
        ids[name] = number


def _transcript(number: int, document: dict[str, Any], seen: Counter[str]) -> Transcript:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadLine("'messages' must be a list that is not empty")
    told = tuple(_message(one, f"messages[{at}]") for at, one in enumerate(messages))
    content = json.dumps(document, sort_keys=True)
    seen[content] += 1
    name = document.get("id")
    identity = f"line {seen[content]} {content}" if name is None else f"id {name}"
    return Transcript(
        line=number,
        id=name,
        key="import-" + sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
        metadata=_metadata(document.get("metadata")),
        messages=told,
    )


def _message(message: object, place: str) -> Message:
    if not isinstance(message, dict):
        raise BadLine(f"'{place}' must be an object with 'role' and 'content'")
    for name, value in message.items():
        if name not in ("role", "content") and value not in (None, [], ""):
            raise BadLine(f"'{place}.{name}' cannot be imported: only roles and text can")
    role = message.get("role")
    if role not in ROLES:
        raise BadLine(f"'{place}.role' is {role!r}, not one of {', '.join(ROLES)}")
    return Message(role=role, text=_text(message.get("content"), f"{place}.content"))


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


def _metadata(metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or len(metadata) > MOST_METADATA:
        raise BadLine(f"'metadata' must be an object of at most {MOST_METADATA} strings")
    for name, value in metadata.items():
        if not isinstance(value, str) or len(name) > LONGEST_NAME or len(value) > LONGEST_VALUE:
            raise BadLine(
                f"'metadata.{name[:LONGEST_NAME]}' must be a string of at most {LONGEST_VALUE} characters, "
                f"under a name of at most {LONGEST_NAME}"
            )
    return metadata
