"""Events to rows and back: explicit names, a schema number for each, and no text or token id that does not survive."""

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from struct import error as StructError  # noqa: N812 a class under a lower-case name
from struct import unpack
from typing import TYPE_CHECKING, Any

from service.domain.artifact import pack_tokens
from service.domain.errors import Internal, InvalidInput
from service.domain.events import (
    AttemptFailed,
    ConversationCreated,
    ConversationUpdated,
    Event,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    MessageAccepted,
    ReasoningAccepted,
    Sampling,
    TurnAsked,
    TurnCompleted,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.evidence import Loaded
from service.store.event_readers import READERS, SCORES, Json, schema_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """`content` is the event's text as UTF-8 that lets lone surrogates pass; `tokens` little-endian uint32."""

    type: str
    schema_number: int
    payload: Json
    content: bytes | None = None
    tokens: bytes | None = None


def encode(event: Event) -> EventRow:
    """Raises: InvalidInput for a number that no row can hold."""
    apart = {TEXT_FIELDS.get(event.name), METADATA if event.name in WITH_METADATA else None}
    payload = to_document(event, without={*apart, *TOKEN_FIELDS, SCORES})
    tokens = None
    if isinstance(event, TurnCompleted):
        tokens = _packed((*event.prompt_delta, *event.output))
        payload |= {field: len(getattr(event, field)) for field in TOKEN_FIELDS}
    if isinstance(event, TurnAsked):
        payload = to_document(event, without=ASKED_FIELDS[max(ASKED_FIELDS)])
    if isinstance(event, TurnParsed):
        payload["parts"] = [to_document(part, without={"text"}) for part in event.parts]
    if isinstance(event, TurnStreamed):
        payload["pieces"] = " ".join(map(str, event.pieces))  # jsonb takes a dozen bytes for a number
    return EventRow(
        type=event.name,
        schema_number=schema_of(event),
        payload=payload,
        content=_content(event),
        tokens=tokens,
    )


def decode(row: EventRow, *, erased: bool = False, tokenless: bool = False) -> Event:
    """What was `erased` comes back empty, and so do token ids that were left where they are.

    Raises:
        Internal: for a name or schema that this version does not know, and for a row that is not whole.
    """
    reader = READERS.get((row.type, row.schema_number))
    if reader is None:
        raise Internal(
            f"A stored event is '{row.type}' schema {row.schema_number}, which this version cannot read "
            f"(it reads {_readable(row.type)}). A newer version wrote it: run that version or a later one."
        )
    try:
        document = from_document(row.payload)
        if (field := TEXT_FIELDS.get(row.type)) is not None:
            document[field] = _whole(row.content, erased=erased).decode("utf-8", "surrogatepass")
        if row.type in WITH_METADATA and METADATA not in document:
            document[METADATA] = json.loads(row.content) if row.content is not None else {}
        if row.type == TurnScored.name:
            document[SCORES] = json.loads(_whole(row.content, erased=erased) or "[]")
        if row.type == TurnAsked.name:
            fields = ASKED_FIELDS[row.schema_number]
            document |= dict(zip(fields, _texts(row.content, len(fields), erased=erased), strict=True))
        if row.type == TurnParsed.name:
            texts = _texts(row.content, len(document["parts"]), erased=erased)
            document["parts"] = [
                part | {"text": text} for part, text in zip(document["parts"], texts, strict=True)
            ]
        if row.type == TurnCompleted.name:
            absent = erased or tokenless
            document |= _token_fields(document, _whole(row.tokens, erased=absent), erased=absent)
        return reader(document)
    except (KeyError, TypeError, ValueError) as error:
        raise Internal(
            f"A stored '{row.type}' event of schema {row.schema_number} is damaged: {error!r}."
        ) from error


def to_document(value: "DataclassInstance", *, without: Container[str | None] = ()) -> Json:
    """A dataclass as JSON that jsonb accepts: NUL and lone surrogates, which it refuses, are escaped."""
    unwritten = UNWRITTEN.get(type(value), frozenset())
    return {
        name: _plain(found)
        for name in _names(type(value))
        if name not in without and ((found := getattr(value, name)) is not None or name not in unwritten)
    }


@cache
def _names(kind: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def from_document(document: Mapping[str, Any]) -> Json:
    """The plain values of `to_document`, unescaped."""
    return {_restored(key): _unplain(value) for key, value in document.items()}


def to_json_text(document: object) -> str:
    """Raises: InvalidInput for a number that JSON does not have."""
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise InvalidInput("A number that is not finite cannot be stored.") from error


# U+F8FF is the last private-use code point of the basic plane; where it occurs itself it is escaped too.
_MARK = "\uf8ff"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\uf8ff]")
_ESCAPED = re.compile("\uf8ff([0-9a-f]{4})")


def _escaped(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def _restored(text: str) -> str:
    if _MARK not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    match value:
        case str():
            return _escaped(value)
        case Mapping():
            return {_escaped(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _unplain(value: Any) -> Any:
    match value:
        case str():
            return _restored(value)
        case dict():
            return from_document(value)
        case list():
            return [_unplain(item) for item in value]
        case _:
            return value


def _packed(tokens: tuple[int, ...]) -> bytes:
    try:
        return pack_tokens(tokens)
    except StructError as error:
        raise InvalidInput("A token id must be a whole number from 0 to 4294967295.") from error


def _content(event: Event) -> bytes | None:
    if (field := TEXT_FIELDS.get(event.name)) is not None:
        text: str = getattr(event, field)
        return text.encode("utf-8", "surrogatepass")
    if event.name in WITH_METADATA and (metadata := getattr(event, METADATA)):
        return json.dumps(dict(metadata)).encode("ascii")
    if isinstance(event, TurnAsked):
        return _several(getattr(event, field) for field in ASKED_FIELDS[schema_of(event)])
    if isinstance(event, TurnParsed):
        return _several(part.text for part in event.parts)
    if isinstance(event, TurnScored):
        scores = [
            (score.token, score.logprob, [(other.token, other.logprob) for other in score.top])
            for score in event.scores
        ]
        # ASCII, so that a lone surrogate passes.
        return json.dumps(scores, allow_nan=False, separators=(",", ":")).encode("ascii")
    return None


def _several(texts: Iterable[str]) -> bytes:
    """Escaped: two halves of a surrogate pair that meet are not to come back as one character."""
    return to_json_text([_escaped(text) for text in texts]).encode()


def _texts(content: bytes | None, number: int, *, erased: bool) -> list[str]:
    if not (whole := _whole(content, erased=erased)):
        return [""] * number
    return [_restored(text) for text in json.loads(whole)]


def _token_fields(document: Json, tokens: bytes, *, erased: bool) -> Json:
    ids = unpack(f"<{len(tokens) // 4}I", tokens)
    delta, output = (document[field] for field in TOKEN_FIELDS)
    if len(ids) != delta + output and not (erased and not ids):
        msg = f"{len(ids)} token ids are stored, {delta} + {output} were counted"
        raise ValueError(msg)
    return {"prompt_delta": ids[:delta], "output": ids[delta:]}


def _whole(part: bytes | None, *, erased: bool) -> bytes:
    if part is None and not erased:
        msg = "its bytes are missing"
        raise ValueError(msg)
    return part or b""


def _readable(name: str) -> str:
    known = sorted(number for known, number in READERS if known == name)
    return f"schemas {', '.join(map(str, known))} of it" if known else "no such event"


TEXT_FIELDS = {
    MessageAccepted.name: "text",
    FunctionCallAccepted.name: "arguments",
    FunctionCallOutputAccepted.name: "output",
    ReasoningAccepted.name: "text",
    TurnCompleted.name: "text",
    AttemptFailed.name: "partial_text",
    TurnStreamed.name: "text",
}
"""The field of each event that holds a person's or a model's words: stored as bytes, apart from the event."""

METADATA = "metadata"
WITH_METADATA = frozenset({ConversationCreated.name, ConversationUpdated.name, TurnStarted.name})
"""Events with a client's own names and values, which may be a person's: content too, as JSON, and none where empty.
Their first schema had them in the payload."""

ASKED_AT_FIRST = ("tools", "tool_choice", "text_format", "instructions")
ASKED_FIELDS = {1: ASKED_AT_FIRST, 2: (*ASKED_AT_FIRST, "labels")}
"""Of `turn.asked`, by schema: a client's own words too, as JSON."""

UNWRITTEN: Mapping[type, frozenset[str]] = {
    Sampling: frozenset({"top_logprobs"}),
    Loaded: frozenset({"contract"}),
    TurnStarted: frozenset({"instructions", "revision", "terms"}),
    TurnPinned: frozenset({"contract", "rollout", "rollout_step", "prefill", "rebuild"}),
    TurnCompleted: frozenset({"frame"}),
}
"""Fields that are not written where they are None, which they mostly are: each would take its name in every row. Readers of every
version take an absent one for None, and so does SQL: `->>` gives null for both."""

TOKEN_FIELDS = ("prompt_delta", "output")
"""Of `turn.completed`: the payload holds their lengths, the ids stand one after the other in `tokens`."""
