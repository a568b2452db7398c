"""Request bodies: bounded before they are held, JSON and nothing else, and checked field by field."""

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from math import isfinite
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from starlette.requests import Request

from service.domain.errors import InvalidInput
from service.domain.limits import NO_LIMITS, Limits

MAX_DEPTH = 100

Body = TypeVar("Body", bound="StrictBody")


class StrictBody(BaseModel):
    """Nothing is converted, and nothing unknown is let through. To JSON, and so to a schema, 3.0 is as whole a number as 3."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return given | {name: _whole(given[name]) for name in _whole_fields(cls) if name in given}


@cache
def _whole_fields(kind: type[StrictBody]) -> tuple[str, ...]:
    """Those that take whole numbers, or lists of them, and no others."""
    kinds = {name: frozenset(_kinds(field.annotation)) for name, field in kind.model_fields.items()}
    return tuple(name for name, taken in kinds.items() if int in taken and float not in taken)


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def read_object(
    request: Request, max_bytes: int, limits: Limits = NO_LIMITS, *, may_be_absent: bool = False
) -> dict[str, Any]:
    """Raises: InvalidInput: too large, another media type, not JSON, or not an object."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = await _read(request, max_bytes, limits)
    if may_be_absent and not data:
        return {}
    if media_type != "application/json":
        raise InvalidInput(
            f"The body must be sent as 'application/json', not as '{media_type or 'nothing named'}'.",
            "Content-Type",
            "unsupported_media_type",
        )
    try:
        document = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is not JSON: {error}.", None, "invalid_json") from error
    if not isinstance(document, dict):
        raise InvalidInput("The body must be a JSON object.", None, "invalid_json")
    _check_depth(document)
    _check_text(document)
    return document


def effective(
    document: Mapping[str, Any], without_effect: Mapping[str, tuple[object, ...]], refused: Collection[str]
) -> dict[str, Any]:
    """What of a body has to be heeded: without nulls, and without values that ask for what is done anyway.

    Raises:
        InvalidInput: naming a parameter that is not supported, or not with another value.
    """
    asked = {
        name: value
        for name, value in document.items()
        if value is not None and value not in without_effect.get(name, ())
    }
    for name in asked:
        if name in without_effect or name in refused:
            raise InvalidInput(
                f"Unsupported parameter: '{name}' is not supported with this value.",
                name,
                "unsupported_parameter",
            )
    return asked


def parse(kind: type[Body], document: dict[str, Any]) -> Body:
    """Raises: InvalidInput: naming the first field that is wrong."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = param_name(first["loc"])
        if first["type"] == "extra_forbidden":
            raise InvalidInput(f"Unknown parameter: '{param}'.", param, "unknown_parameter") from error
        if first["type"] == "missing":
            raise InvalidInput(
                f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
            ) from error
        raise InvalidInput(f"'{param}': {first['msg']}.", param) from error


def param_name(path: tuple[str | int, ...]) -> str:
    """As OpenAI writes them: `input[0].content`."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


async def _read(request: Request, max_bytes: int, limits: Limits) -> bytes:
    """The server itself reads and drops the rest of a body that is too large, so its sender gets the answer."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        limits.check("request_bytes", size)
        if size > max_bytes:
            raise InvalidInput(
                f"The body is larger than the limit of {max_bytes} bytes.", None, "body_too_large"
            )
        parts.append(part)
    return b"".join(parts)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        _refuse_constant(text)
    return number


def _refuse_constant(name: str) -> None:
    msg = f"{name} is not a JSON number"
    raise ValueError(msg)


def _check_depth(document: dict[str, Any]) -> None:
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise InvalidInput(f"The body is nested more than {MAX_DEPTH} levels deep.", None, "invalid_json")


def _check_text(document: dict[str, Any]) -> None:
    """Half of a surrogate pair is no character: no tokenizer and no reader of the answer could take it."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            "The body has half of a surrogate pair, which is no character.", None, "invalid_json"
        ) from error
