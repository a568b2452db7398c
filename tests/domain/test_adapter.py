"""An adapter as it is told of: what makes its revision, and what is no telling at all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.adapter import (
    LONGEST_NAME,
    LONGEST_REASON,
    NO_ADAPTER,
    ServedAdapter,
    UnknownAdapter,
    effective,
    in_one_line,
    is_name,
    parse_adapters,
)
from service.domain.errors import InvalidInput
from service.domain.revision import differing_fields, same_text
from tests.domain.descriptors import V12

A, B = "a" * 64, "b" * 64
LEGAL = {"model": "legal", "adapter": A, "revision": effective(V12, A).digest}
RAW = {"model": "raw", "reason": "it was loaded past us"}


def test_an_adapter_changes_nothing_of_the_base_but_the_adapter() -> None:
    assert differing_fields(effective(V12, A), V12) == ("adapter",)
    assert differing_fields(effective(V12, A), effective(V12, B)) == ("adapter",)
    assert effective(effective(V12, A), NO_ADAPTER) == V12


def test_token_ids_may_be_carried_between_a_base_and_its_adapters() -> None:
    assert same_text(effective(V12, A), V12)


def test_what_an_engine_tells_is_read_as_it_was_told() -> None:
    adapters = parse_adapters([LEGAL, RAW])
    assert adapters == (
        ServedAdapter(model="legal", adapter=A, revision=effective(V12, A).digest),
        UnknownAdapter(model="raw", reason="it was loaded past us"),
    )
    assert [adapter.to_json() for adapter in adapters] == [LEGAL, RAW]


def test_one_adapter_may_have_two_names() -> None:
    assert len(parse_adapters([LEGAL, LEGAL | {"model": "law"}])) == 2


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({}, "adapters"),
        ([7], "adapters[0]"),
        ([LEGAL, {}], "adapters[1]"),
        ([LEGAL | {"reason": "both"}], "adapters[0]"),
        ([{"model": "legal", "adapter": A}], "adapters[0]"),
        ([LEGAL | {"model": ""}], "adapters[0].model"),
        ([LEGAL | {"model": 7}], "adapters[0].model"),
        ([LEGAL | {"model": "two\nlines"}], "adapters[0].model"),
        ([LEGAL | {"model": "m" * (LONGEST_NAME + 1)}], "adapters[0].model"),
        ([LEGAL | {"adapter": NO_ADAPTER}], "adapters[0].adapter"),
        ([LEGAL | {"adapter": A.upper()}], "adapters[0].adapter"),
        ([LEGAL | {"revision": "latest"}], "adapters[0].revision"),
        ([RAW | {"reason": ""}], "adapters[0].reason"),
        ([LEGAL, RAW | {"model": "legal"}], "adapters[1].model"),
    ],
    ids=str,
)
def test_any_other_telling_is_refused_by_field(told: Any, param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_adapters(told)
    assert refused.value.param == param


@given(st.text(st.characters(exclude_categories=())))
def test_a_reason_becomes_one_printable_line(text: str) -> None:
    line = in_one_line(text)
    assert len(line) == min(len(text), LONGEST_REASON)
    assert line.isprintable()


@pytest.mark.parametrize("name", ["", "\x00", "\ud800", "a\tb", "m" * (LONGEST_NAME + 1)])
def test_what_no_row_or_line_can_hold_is_no_name(name: str) -> None:
    assert not is_name(name)
    assert is_name("legal-2 (été)")


def test_its_name_is_no_part_of_a_revision() -> None:
    served = parse_adapters([LEGAL])[0]
    assert isinstance(served, ServedAdapter)
    assert replace(served, model="law").revision == served.revision
