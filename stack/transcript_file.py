"""Transcripts as JSON lines: one conversation a line, `{"id"?, "metadata"?, "messages": […]}`, each as `transcript_messages` reads them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.domain.errors import InvalidInput
from service.domain.own_keys import conversation_policy
from stack.transcript_entries import BadLine, Entry
from stack.transcript_messages import read_messages

MOST_METADATA = 16
LONGEST_NAME = 64
LONGEST_VALUE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    line: int
    id: str | None
    key: str
    """Of this conversation and no other, in this file or in another: by its id, or by all that is in its line."""
    metadata: dict[str, str]
    messages: tuple[Entry, ...]
    left_out: Counter[str] = field(default_factory=Counter)
    """Of how many of its messages each of these fields is."""


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
    told, left_out = read_messages(messages)
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
        left_out=left_out,
    )


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
    try:
        conversation_policy(metadata)
    except InvalidInput as error:
        raise BadLine(f"'metadata': {error}") from error
    return metadata
