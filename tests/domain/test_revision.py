import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain import canonical
from service.domain.errors import InvalidDescriptor
from service.domain.revision import (
    Descriptor,
    KvIdentity,
    Settings,
    TextIdentity,
    differences,
    differing_fields,
    parse_digest,
    same_text,
)
from tests.domain.descriptors import V12, V13, with_kv, with_text

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=12
)


def identical(left: Any, right: Any) -> bool:
    """Equality that tells 1 from True from 1.0, and 0.0 from -0.0, as `==` does not."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@given(VALUES, VALUES)
def test_two_values_share_canonical_bytes_only_if_they_are_the_same(left: Any, right: Any) -> None:
    assert (canonical.encode(left) == canonical.encode(right)) == identical(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab", "c"], ["a", "bc"]),
        ({"a": "b"}, ["a", "b"]),
        (["1"], [1]),
        ([1], [True]),
        ([1], [1.0]),
        ({"a": None}, {}),
        ({"a": ""}, {"a": None}),
        ([[], "a"], [["a"]]),
    ],
)
def test_field_boundaries_and_types_do_not_collide(left: Any, right: Any) -> None:
    assert canonical.digest(left) != canonical.digest(right)


def changed(kind: object, value: Any) -> Any:
    if kind is Settings:
        return {**value, "another": 1}
    return value + 1 if kind is int else value + "x"


@pytest.mark.parametrize("field", [f.name for f in fields(KvIdentity)])
def test_every_kv_field_moves_the_digest_and_is_named(field: str) -> None:
    kind = next(f.type for f in fields(KvIdentity) if f.name == field)
    other = with_kv(**{field: changed(kind, getattr(V12.kv, field))})
    assert other.digest != V12.digest
    assert [name.split(".")[0] for name in differing_fields(V12, other)] == [field]


@pytest.mark.parametrize("field", [f.name for f in fields(TextIdentity)])
def test_every_text_field_moves_the_digest_and_is_named(field: str) -> None:
    kind = next(f.type for f in fields(TextIdentity) if f.name == field)
    other = with_text(**{field: changed(kind, getattr(V12.text, field))})
    assert other.digest != V12.digest
    assert [name.split(".")[0] for name in differing_fields(V12, other)] == [field]
    assert not same_text(V12, other)


def test_other_weights_keep_the_text_identity() -> None:
    assert same_text(V12, V13)


def test_a_descriptor_survives_json_with_its_digest() -> None:
    assert Descriptor.from_json(json.loads(json.dumps(V12.to_json()))).digest == V12.digest


def test_the_digest_of_a_known_descriptor_never_moves() -> None:
    assert V12.digest == "rev_913a8d098728ca900c3c1c7996a25cb30f3d8216fd1fe61253282e4c65b33d44"


def test_a_number_that_became_a_whole_number_is_another_revision() -> None:
    other = with_kv(position={"rope_parameters.rope_theta": 100000, "sliding_window": None})
    assert differing_fields(V12, other) == ("position.rope_parameters.rope_theta",)


def test_an_absent_setting_differs_from_a_null_one() -> None:
    other = with_kv(position={"rope_parameters.rope_theta": 100000.0})
    assert [str(d) for d in differences(V12, other)] == ["position.sliding_window: None here, (absent) there"]


def test_a_report_shortens_hashes_but_not_settings() -> None:
    assert "avx2 there" in str(differences(V12, with_kv(attention_isa="avx2"))[0])


@pytest.mark.parametrize("value", ["auto", "AUTO", "latest", "main", "unknown"])
def test_unresolved_values_are_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidDescriptor, match=r"'kv\.kv_dtype' is"):
        Descriptor.from_json(with_kv(kv_dtype=value).to_json())


@pytest.mark.parametrize("value", ["", None, 3, [], float("nan")])
def test_wrong_values_are_refused_by_name(value: Any) -> None:
    document = V12.to_json()
    document["kv"]["compute_dtype"] = value
    with pytest.raises(InvalidDescriptor) as refused:
        Descriptor.from_json(document)
    assert refused.value.param == "kv.compute_dtype"


def test_a_missing_field_is_not_an_empty_one() -> None:
    document = V12.to_json()
    del document["kv"]["adapter"]
    with pytest.raises(InvalidDescriptor, match=r"'kv\.adapter' is missing"):
        Descriptor.from_json(document)


def test_an_unknown_field_is_refused() -> None:
    document = V12.to_json()
    document["text"]["colour"] = "red"
    with pytest.raises(InvalidDescriptor, match=r"'text\.colour' is not a field"):
        Descriptor.from_json(document)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_equals_nothing_identifies_nothing(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be part of an identity"):
        canonical.encode([number])
    document = V12.to_json()
    document["kv"]["position"] = {"rope_theta": number}
    with pytest.raises(InvalidDescriptor, match="finite"):
        Descriptor.from_json(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", "linear"),
        ("position", {"rope": [1]}),
        ("block_size", -1),
        ("block_size", True),
        ("block_size", "4"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: object) -> None:
    document = V12.to_json()
    document["kv"][field] = value
    with pytest.raises(InvalidDescriptor, match=rf"'kv\.{field}") as refused:
        Descriptor.from_json(document)
    assert refused.value.param == f"kv.{field}"


@pytest.mark.parametrize("document", [None, [], "rev", {}, {"kv": {}}, {"kv": [], "text": {}}])
def test_what_is_not_a_descriptor_is_refused(document: object) -> None:
    with pytest.raises(InvalidDescriptor):
        Descriptor.from_json(document)


@pytest.mark.parametrize(
    "text", ["latest", "main", "v12", "rev_12", "rev_" + "G" * 64, "rev_" + "0" * 65, ""]
)
def test_floating_references_are_not_digests(text: str) -> None:
    with pytest.raises(InvalidDescriptor, match="identify nothing"):
        parse_digest(text)
