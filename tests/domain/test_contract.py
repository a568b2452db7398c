"""A contract permits exactly what was approved: these two revisions, these fields, until then; and some fields never."""

from dataclasses import fields, replace
from typing import Any

import pytest

from service.domain.contract import Contract, approve, breach_of, parse_contract_id
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor, KvIdentity
from tests.domain.descriptors import V12, V13, with_kv, with_text

NEWER = with_kv(engine_version="0.33.0", environment={"VLLM_X": "1"})
WAIVED = ("engine_version", "environment.VLLM_X")
NOW, END = 1_000, 2_000


def contract(
    reader: Descriptor = NEWER,
    producer: Descriptor = V12,
    waived: tuple[str, ...] = WAIVED,
    ends_ms: int = END,
) -> Contract:
    return approve(
        reader=reader,
        producer=producer,
        waived=waived,
        reason="bitwise equal on the golden prompts",
        by="ada",
        now_ms=NOW,
        ends_ms=ends_ms,
    )


def breach(terms: Contract, own: Descriptor = NEWER, theirs: Descriptor = V12, now_ms: int = NOW) -> str:
    found = breach_of(terms, own=own, theirs=theirs, now_ms=now_ms)
    assert found is not None
    return found.detail


def test_what_was_approved_is_permitted() -> None:
    assert breach_of(contract(), own=NEWER, theirs=V12, now_ms=NOW) is None


def test_waiving_more_than_differs_is_permitted() -> None:
    terms = contract(waived=(*WAIVED, "model_runner"))
    assert breach_of(terms, own=NEWER, theirs=V12, now_ms=NOW) is None


def test_text_identity_can_be_waived() -> None:
    other = with_text(chat_template="sha256:" + "dd" * 32)
    terms = contract(reader=other, waived=("chat_template",))
    assert breach_of(terms, own=other, theirs=V12, now_ms=NOW) is None


def test_it_ends() -> None:
    assert breach_of(contract(), own=NEWER, theirs=V12, now_ms=END - 1) is None
    found = breach_of(contract(), own=NEWER, theirs=V12, now_ms=END)
    assert found is not None
    assert found.expired


def test_it_is_of_one_reader_and_one_producer_and_one_direction() -> None:
    assert "lets" in breach(contract(), own=with_kv(NEWER, model_runner="v2"))
    assert "is about KV of" in breach(contract(), theirs=with_kv(environment={"VLLM_X": "2"}))
    assert "lets" in breach(contract(), own=V12, theirs=NEWER)


NEVER = [
    ("weights", "sha256:" + "13" * 32),
    ("quantization", "awq"),
    ("architecture", {"hidden_size": 577}),
    ("position", {"rope_parameters.rope_theta": 1.0}),
    ("adapter", "sha256:" + "ee" * 32),
    ("compute_dtype", "bfloat16"),
    ("kv_dtype", "fp8"),
    ("kv_scales", "checkpoint"),
    ("attention_backend", "FLASH_ATTN"),
    ("attention_isa", "avx512 amx"),
    ("attention_isa", "aarch64"),
    ("block_size", 8),
    ("kv_layout", {"name": "NHD"}),
    ("shards", {"tensor_parallel": 2}),
    ("serializer_abi", 2),
]


@pytest.mark.parametrize(("field", "value"), NEVER, ids=[f"{name} {value}"[:40] for name, value in NEVER])
def test_what_decides_the_bytes_is_refused_by_name_at_approval_and_by_the_consumer(
    field: str, value: Any
) -> None:
    other = with_kv(**{field: value})
    waived = tuple(f"{field}.{key}" for key in value) if isinstance(value, dict) else (field,)
    with pytest.raises(InvalidInput, match=rf"{field}.*never be waived") as refused:
        contract(reader=other, waived=waived)
    assert refused.value.param == "waived"
    forged = replace(contract(), reader=other.digest, waived=waived)
    assert field in breach(forged, own=other)
    assert "never" in breach(forged, own=other)


def test_every_field_of_the_kv_identity_is_either_never_waived_here_or_known_to_be_waivable() -> None:
    """A field that is added must be thought about."""
    waivable = {"engine", "engine_version", "model_runner", "draft_model", "environment", "compile_mode"}
    assert {f.name for f in fields(KvIdentity)} - {name for name, _ in NEVER} == waivable


def test_a_field_that_can_never_be_waived_is_refused_even_where_it_does_not_differ() -> None:
    with pytest.raises(InvalidInput, match="weights"):
        contract(waived=(*WAIVED, "weights"))
    assert "weights can never be waived" in breach(replace(contract(), waived=(*WAIVED, "weights")))


@pytest.mark.parametrize("waived", [(), ("engine_version",), ("engine_version", "environment")])
def test_every_difference_must_be_named(waived: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"also differ in .*environment\.VLLM_X"):
        contract(waived=waived)
    assert "does not waive" in breach(replace(contract(), waived=waived))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"waived": (*WAIVED, "colour")}, "'colour', which is no field"),
        ({"ends_ms": NOW}, "must lie in the future"),
        ({"reader": V12}, "are one revision"),
        ({"reader": V13, "waived": ("weights",)}, "never be waived"),
    ],
)
def test_terms_that_make_no_sense_are_refused(change: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        contract(**change)


def test_its_id_is_that_of_every_term() -> None:
    terms = contract()
    changes: dict[str, Any] = {
        "reader": V13.digest,
        "producer": V13.digest,
        "waived": ("engine_version",),
        "reason": "other",
        "approved_by": "bob",
        "approved_ms": 1,
        "ends_ms": 1,
    }
    assert set(changes) == {f.name for f in fields(Contract)}
    ids = {replace(terms, **{name: value}).id for name, value in changes.items()}
    assert len({terms.id, *ids}) == len(changes) + 1
    assert parse_contract_id(terms.id) == terms.id


def test_it_comes_back_from_json_whole() -> None:
    terms = contract()
    assert Contract.from_json(terms.to_json()) == terms


@pytest.mark.parametrize(
    "change",
    [
        {"reader": "latest"},
        {"producer": ""},
        {"waived": "engine_version"},
        {"waived": [1]},
        {"ends_ms": True},
        {"ends_ms": "2000"},
        {"approved_ms": -1},
        {"approved_by": ""},
        {"reason": None},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_document_that_is_not_a_contract_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Contract.from_json(contract().to_json() | change)


def test_a_document_with_a_term_missing_is_refused() -> None:
    for name in contract().to_json():
        document = contract().to_json()
        del document[name]
        with pytest.raises(InvalidInput):
            Contract.from_json(document)


@pytest.mark.parametrize("text", ["", "ctr_", "ctr_" + "g" * 64, "../ctr_" + "a" * 64, None, 7])
def test_an_id_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(InvalidInput):
        parse_contract_id(text)
