"""KV under another identity, decided without an engine: what two revisions, or two tenants, can never share."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from service.domain.artifact import Admitted, RefusalReason, Refused, Tensor, admit
from service.domain.errors import InvalidDescriptor
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12, with_kv
from tests.workers.kv_connector.paged_fakes import SIZE, TENANT, TOKENS, manifest_of, save, side
from tests.workers.kv_connector.scenes import request, scheduler_side
from workers.kv_connector.hash_root import HashRoot

HANDLE = "kv_0123456789"
PROMPT = [*TOKENS, 901, 902, 903]


def verdict(own: Descriptor) -> tuple[str, ...]:
    """The fields for which an engine that is `own` refuses what V12 made; none where it admits all of it."""
    with TemporaryDirectory() as folder:
        engine = side(Path(folder))
        save(engine, HANDLE)
        decided = admit(
            manifest_of(engine, HANDLE),
            own=own,
            tenant=TENANT,
            prompt=PROMPT,
            tensors=engine.paged.tensors,
            now_ms=0,
        )
    if isinstance(decided, Admitted):
        assert decided.tokens == 3 * SIZE
        return ()
    assert decided.reason is RefusalReason.REVISION_MISMATCH
    return decided.differing


@pytest.mark.parametrize("field", ["kv_dtype", "compute_dtype", "attention_backend", "quantization"])
def test_k3_auto_is_never_a_value(field: str) -> None:
    with pytest.raises(InvalidDescriptor, match="not a resolved value"):
        Descriptor.from_json(with_kv(V12, **{field: "auto"}).to_json())


@pytest.mark.parametrize("resolved", ["float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"])
def test_k3_every_resolved_dtype_is_another_revision(resolved: str) -> None:
    assert with_kv(kv_dtype=resolved).digest != V12.digest
    assert verdict(with_kv(kv_dtype=resolved)) == ("kv_dtype",)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_runner": "v2"}, "model_runner"),
        ({"attention_backend": "another"}, "attention_backend"),
        ({"kv_layout": {"name": "BLNHC"}}, "kv_layout.name"),
        ({"shards": {"tensor_parallel": 2}}, "shards.tensor_parallel"),
        ({"compile_mode": "compiled"}, "compile_mode"),
        ({"serializer_abi": 2}, "serializer_abi"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_k4_another_runner_layout_or_shard_map_of_equal_bytes_is_refused(
    changes: dict[str, Any], field: str
) -> None:
    assert verdict(with_kv(V12, **changes)) == (field,)
    assert verdict(V12) == ()


@pytest.mark.parametrize(
    "own",
    [
        with_kv(model_runner="v2"),
        with_kv(kv_layout={"name": "BLNHC"}),
        with_kv(shards={"tensor_parallel": 2}),
    ],
    ids=["runner", "layout", "shards"],
)
def test_k4_it_is_refused_before_any_byte_of_payload_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Descriptor
) -> None:
    writer = side(tmp_path / "kv")
    save(writer, HANDLE)
    monkeypatch.setattr(type(writer.store), "read_block", lambda *_: pytest.fail("read"))
    asked = request(offer=HANDLE)
    other, same = scheduler_side(tmp_path, own), scheduler_side(tmp_path, V12)
    assert other.matched(asked, 0) == 0
    assert other.jobs().loads == ()
    assert same.matched(asked, 0) == 3 * SIZE


@pytest.mark.parametrize("order", [(1, 0), (0,)], ids=["layers swapped", "layer missing"])
def test_k4_tensors_in_another_order_are_refused(tmp_path: Path, order: tuple[int, ...]) -> None:
    engine = side(tmp_path)
    save(engine, HANDLE)
    tensors: tuple[Tensor, ...] = engine.paged.tensors
    refused = admit(
        manifest_of(engine, HANDLE),
        own=V12,
        tenant=TENANT,
        prompt=PROMPT,
        tensors=[tensors[index] for index in order],
        now_ms=0,
    )
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.MANIFEST_INCOMPLETE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"adapter": "ab", "draft_model": "c"}, {"adapter": "a", "draft_model": "bc"}),
        ({"environment": {"ab": "c"}}, {"environment": {"a": "bc"}}),
        ({"environment": {"a": "b", "c": "d"}}, {"environment": {"a": "bcd"}}),
        ({"environment": {}}, {"environment": {"a": ""}}),
        ({"environment": {"a": None}}, {"environment": {}}),
        ({"environment": {"a": "None"}}, {"environment": {"a": None}}),
        ({"environment": {"a": 1}}, {"environment": {"a": True}}),
        ({"environment": {"a": 1}}, {"environment": {"a": "1"}}),
        ({"environment": {"a": 1}}, {"environment": {"a": 1.0}}),
        ({"environment": {"a.b": "c"}, "position": {}}, {"environment": {}, "position": {"a.b": "c"}}),
        ({"adapter": "everturn-kv"}, {"adapter": "none"}),
    ],
)
def test_k7_field_boundaries_never_collide(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert with_kv(V12, **one).digest != with_kv(V12, **other).digest
    assert with_kv(V12, **one).digest == with_kv(V12, **one).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b c"), ("a b", "c")),
        (("a", None), ("a ", None)),
        ((None, "x"), ("x", None)),
        ((None, None), ("-", None)),
        (("", "x"), (None, "x")),
    ],
)
def test_k7_a_tenant_named_like_a_salt_is_no_other_tenant(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    root = HashRoot("boot")
    root.identify(V12.digest)
    assert root.salt(*one) != root.salt(*other)
    assert root.salt(*one) == root.salt(*one)


def test_k7_a_callers_salt_that_looks_like_an_adapter_or_a_contract_is_neither() -> None:
    root, apart = HashRoot("boot"), ("contract", "r-1", "adapter", None)
    root.identify(V12.digest)
    marked = root.salt("a", "x", apart)
    assert marked != root.salt("a", "x", ("contract", None, "adapter", "r-1"))
    for callers in (marked, marked.partition(" - ")[2], marked.split(" ", 3)[3], "contract r-1 x"):
        assert root.salt("a", callers) != marked
        assert root.salt(None, callers) != marked
