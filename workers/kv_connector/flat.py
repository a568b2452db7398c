"""Nested configuration as flat dotted settings, the form in which identities compare it."""

from collections.abc import Iterable, Mapping
from enum import Enum

from service.domain.canonical import Scalar


def flatten(value: object, prefix: str = "") -> dict[str, Scalar]:
    """Keys joined with dots; sequences by index; an empty container keeps its key, so that absent differs from empty."""
    match value:
        case Mapping() if value:
            return _joined(((str(key), item) for key, item in value.items()), prefix)
        case list() | tuple() if value:
            return _joined(((str(index), item) for index, item in enumerate(value)), prefix)
        case set() | frozenset():
            return flatten(sorted(str(item) for item in value), prefix)
        case Mapping():
            return {prefix: "{}"} if prefix else {}
        case list() | tuple():
            return {prefix: "[]"} if prefix else {}
        case _:
            return {prefix: _scalar(value)}


def _joined(pairs: Iterable[tuple[str, object]], prefix: str) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, item in pairs:
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def _scalar(value: object) -> Scalar:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
