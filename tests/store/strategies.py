"""Any event at all, from the fields' types: new fields are covered on the day they appear."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from service.domain.events import Event

# Every code point: NUL, lone surrogates, and the mark that the codec escapes with.
TEXT = st.text(
    st.one_of(st.characters(exclude_categories=()), st.sampled_from("\x00\ud800\udfff\uf8ff0dA\\"))
)
TOKENS = st.integers(min_value=0, max_value=2**32 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def events() -> st.SearchStrategy[Event]:
    return st.one_of([of_type(kind) for kind in get_args(Event)])


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, NewType):
        return of_type(kind.__supertype__)
    if get_origin(kind) in (Union, UnionType):
        return st.one_of([of_type(part) for part in get_args(kind)])
    if get_origin(kind) is tuple:
        return st.lists(of_type(get_args(kind)[0]), max_size=8).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(*[of_type(part) for part in get_args(kind)], max_size=3)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return st.builds(kind, **{f.name: of_type(hints[f.name]) for f in fields(kind)})
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return {str: TEXT, int: TOKENS, float: FLOATS, bool: st.booleans(), NoneType: st.none()}[kind]
