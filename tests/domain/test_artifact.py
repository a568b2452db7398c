from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.domain.artifact import (
    Admitted,
    ArtifactId,
    Block,
    BootId,
    MadeBy,
    Manifest,
    RefusalReason,
    Refused,
    Tensor,
    admit,
    block_keys,
    parse_artifact_id,
)
from service.domain.errors import InvalidManifest
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12, V13, with_kv, with_text

TENSORS = (Tensor(name="layers.0", dtype="float32", shape=(3, 4, 128)),)
PROMPT = tuple(range(100, 120))
NOW = 1_000_000


def manifest(
    descriptor: Descriptor = V12, tenant: str = "acme", tokens: tuple[int, ...] = PROMPT[:12]
) -> Manifest:
    keys = block_keys(descriptor.digest, tenant, tokens, 4)
    return Manifest(
        artifact=ArtifactId("kv_0123456789abcdef"),
        tenant=tenant,
        descriptor=descriptor,
        producer=BootId("boot_1"),
        attempt="resp_1.1",
        made_by=MadeBy.PREFILL,
        created_ms=NOW - 1,
        expires_ms=NOW + 1,
        token_count=len(keys) * 4,
        block_size=4,
        tensors=TENSORS,
        blocks=tuple(Block(key=key, checksum="00" * 32, size=6144) for key in keys),
    )


def decide(
    stored: Manifest, own: Descriptor | None = V12, tenant: str = "acme", prompt: tuple[int, ...] = PROMPT
) -> Admitted | Refused:
    return admit(stored, own=own, tenant=tenant, prompt=prompt, tensors=TENSORS, now_ms=NOW)


def reason(decision: Admitted | Refused) -> RefusalReason:
    assert isinstance(decision, Refused)
    return decision.reason


def test_an_artifact_of_the_same_revision_is_admitted_whole() -> None:
    assert decide(manifest()) == Admitted(blocks=3, tokens=12)


def test_other_weights_are_refused_and_named() -> None:
    decision = decide(manifest(V12), own=V13)
    assert isinstance(decision, Refused)
    assert decision.reason is RefusalReason.REVISION_MISMATCH
    assert decision.differing == ("weights",)


@pytest.mark.parametrize("other", [with_kv(kv_dtype="bfloat16"), with_text(chat_template="sha256:dd")])
def test_any_other_revision_is_refused(other: Descriptor) -> None:
    assert reason(decide(manifest(other))) is RefusalReason.REVISION_MISMATCH


def test_an_engine_that_has_not_measured_itself_reads_nothing() -> None:
    assert reason(decide(manifest(), own=None)) is RefusalReason.REVISION_UNKNOWN


def test_blocks_keyed_under_another_revision_are_refused_though_the_manifest_claims_ours() -> None:
    forged = replace(manifest(V13), descriptor=V12)
    assert reason(decide(forged)) is RefusalReason.TOKEN_MISMATCH


def test_another_tenants_artifact_is_refused() -> None:
    assert reason(decide(manifest(tenant="other"))) is RefusalReason.TENANT_MISMATCH


def test_a_lease_that_ends_now_has_ended() -> None:
    assert reason(decide(replace(manifest(), expires_ms=NOW))) is RefusalReason.LEASE_EXPIRED


def test_tensors_of_another_shape_are_refused() -> None:
    other = replace(manifest(), tensors=(replace(TENSORS[0], shape=(3, 128, 4)),))
    assert reason(decide(other)) is RefusalReason.MANIFEST_INCOMPLETE


def test_other_tokens_are_refused() -> None:
    assert reason(decide(manifest(), prompt=(7, *PROMPT[1:]))) is RefusalReason.TOKEN_MISMATCH


def test_only_the_common_prefix_is_admitted() -> None:
    assert decide(manifest(), prompt=(*PROMPT[:9], 7, *PROMPT[10:])) == Admitted(blocks=2, tokens=8)


@pytest.mark.parametrize(("length", "tokens"), [(14, 12), (13, 8), (12, 8), (6, 4)])
def test_two_tokens_are_always_left_to_compute(length: int, tokens: int) -> None:
    assert decide(manifest(), prompt=PROMPT[:length]) == Admitted(blocks=tokens // 4, tokens=tokens)


def test_a_prompt_shorter_than_a_block_reuses_nothing() -> None:
    assert reason(decide(manifest(), prompt=PROMPT[:5])) is RefusalReason.TOKEN_MISMATCH


def test_a_manifest_survives_its_bytes() -> None:
    assert Manifest.from_bytes(manifest().to_bytes()) == manifest()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'"format":1', b'"format":2'),
        (b'"format":1', b'"format":1.0'),
        (b'"format":1', b'"format":true'),
        (b'"block_size":4', b'"block_size":8'),
        (b'"tenant"', b'"tennant"'),
        (b'"artifact":"kv_0123456789abcdef"', b'"artifact":"../0123456789abcdef"'),
    ],
)
def test_a_manifest_of_another_kind_is_not_read(written: bytes, read: bytes) -> None:
    data = manifest().to_bytes()
    assert written in data
    with pytest.raises(InvalidManifest):
        Manifest.from_bytes(data.replace(written, read))


def test_a_manifest_that_claims_a_digest_it_does_not_have_is_not_read() -> None:
    data = manifest(V12).to_bytes().replace(V12.digest.encode(), V13.digest.encode())
    with pytest.raises(InvalidManifest, match="not that of its descriptor"):
        Manifest.from_bytes(data)


def test_a_manifest_without_blocks_is_not_read() -> None:
    empty = replace(manifest(), blocks=(), token_count=0)
    with pytest.raises(InvalidManifest, match="do not cover"):
        Manifest.from_bytes(empty.to_bytes())


@given(st.integers(min_value=0), st.binary(max_size=3))
def test_no_cut_or_scribbled_manifest_is_read(at: int, scribble: bytes) -> None:
    data = manifest().to_bytes()
    at %= len(data)
    spoilt = data[:at] + scribble
    assume(spoilt != data)
    with pytest.raises(InvalidManifest):
        Manifest.from_bytes(spoilt)


@pytest.mark.parametrize(
    "handle",
    ["../../etc/passwd", "/etc/passwd", "kv_\0aaaaaaaa", "kv_" + "a" * 10_000, "kv_AAAAAAAA", "", None, 7],
)
def test_a_handle_that_could_leave_the_store_is_refused_before_any_read(handle: object) -> None:
    decision = parse_artifact_id(handle)
    assert isinstance(decision, Refused)
    assert decision.reason is RefusalReason.HANDLE_INVALID


def test_keys_differ_by_tenant_revision_and_every_token_before() -> None:
    keys = block_keys(V12.digest, "acme", PROMPT, 4)
    assert len(set(keys)) == 5
    assert not set(keys) & set(block_keys(V13.digest, "acme", PROMPT, 4))
    assert not set(keys) & set(block_keys(V12.digest, "other", PROMPT, 4))
    assert not set(keys) & set(block_keys(V12.digest, "acme", (1, *PROMPT[1:]), 4))
