"""Whatever lies in the store, the readers of manifests and blocks neither fall over it nor take it for KV."""

import json
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from service.domain.artifact import Admitted, ArtifactId, Manifest, Refused, admit
from service.domain.errors import InvalidManifest
from service.domain.evidence import Refusal
from tests.domain.descriptors import V12
from tests.workers.kv_connector.mutations import changed_documents, mutants
from tests.workers.kv_connector.paged_fakes import TENANT, TOKENS, Side, load_job, manifest_of, save, side
from workers.kv_connector.block_file import (
    LENGTH_BYTES,
    SEAL_BYTES,
    BlockHeader,
    BlockUnreadable,
    sealed,
    split_block,
)
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.offers import read_offer
from workers.kv_connector.store import MAX_MANIFEST_BYTES

HANDLE = ArtifactId("kv_0123456789")
INPUTS = 2_000
"""`python -m bench.fuzz` tries 100,000 of each."""


def fuzz_manifests(root: Path, inputs: int, seed: int) -> int:
    """How many were taken for a manifest."""
    writer = side(root)
    save(writer, HANDLE)
    path = LocalStore(root).manifest_path(TENANT, HANDLE)
    taken = 0
    for mutant in mutants(path.read_bytes(), inputs, seed):
        path.write_bytes(mutant)
        try:
            manifest_of(writer, HANDLE)
        except InvalidManifest:
            continue
        taken += 1
    return taken


def fuzz_blocks(root: Path, inputs: int, seed: int) -> int:
    """How many were loaded."""
    reader = side(root)
    save(reader, HANDLE)
    manifest = manifest_of(reader, HANDLE)
    path = LocalStore(root).block_path(TENANT, manifest.revision, manifest.blocks[1].key)
    whole = path.read_bytes()
    job, taken = load_job(manifest), 0
    for mutant in mutants(whole, inputs, seed):
        path.write_bytes(mutant)
        outcome = reader.loader.load(job, None)
        taken += not isinstance(outcome, Refusal)
        for kept in (root / "quarantine").iterdir():
            kept.unlink()
    return taken


def fuzz_sealed_manifests(root: Path, inputs: int, seed: int) -> int:
    """How many were read as what they are not; all are whole by their seal."""
    reader = side(root)
    save(reader, HANDLE)
    path = LocalStore(root).manifest_path(TENANT, HANDLE)
    document, taken = json.loads(reader.store.read_manifest(TENANT, HANDLE)), 0
    for changed_document, where in changed_documents(document, inputs, seed):
        path.write_bytes(sealed(json.dumps(changed_document).encode()))
        read = read_offer(reader.store, TENANT, HANDLE)
        if isinstance(read, Refused) or not isinstance(admitted(reader, read), Admitted):
            continue
        taken += where not in WITHOUT_WEIGHT and not isinstance(
            reader.loader.load(load_job(read), None), Refusal
        )
    return taken


def fuzz_sealed_headers(root: Path, inputs: int, seed: int) -> int:
    """How many blocks were loaded under a header that says something else, and is whole by its seal."""
    reader = side(root)
    save(reader, HANDLE)
    manifest = manifest_of(reader, HANDLE)
    path = LocalStore(root).block_path(TENANT, manifest.revision, manifest.blocks[1].key)
    header, payload = split_block(memoryview(path.read_bytes()))
    job, taken = load_job(manifest), 0
    for document, where in changed_documents(header_document(header), inputs, seed):
        path.write_bytes(resealed(document) + payload)
        outcome = reader.loader.load(job, None)
        taken += where not in WITHOUT_WEIGHT and not isinstance(outcome, Refusal)
        for kept in (root / "quarantine").iterdir() if (root / "quarantine").is_dir() else ():
            kept.unlink()
    return taken


WITHOUT_WEIGHT = frozenset({"producer", "made_by", "attempt", "created_ms", "expires_ms"})
"""What only tells where KV came from: nothing is decided on it. (How long it may be read is the artifact's own word.)"""


def admitted(reader: Side, manifest: Manifest) -> Admitted | Refused:
    return admit(
        manifest,
        own=reader.paged.own,
        tenant=TENANT,
        prompt=[*TOKENS, 1, 2],
        tensors=reader.paged.tensors,
        now_ms=1,
    )


def header_document(header: BlockHeader) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(header.to_bytes()[LENGTH_BYTES + SEAL_BYTES :])
    return document


def resealed(document: object) -> bytes:
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return len(data).to_bytes(LENGTH_BYTES, "little") + sha256(data).digest() + data


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_manifest_is_taken_for_one(tmp_path: Path, seed: int) -> None:
    assert fuzz_manifests(tmp_path, INPUTS, seed) == 0


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_block_is_loaded(tmp_path: Path, seed: int) -> None:
    assert fuzz_blocks(tmp_path, INPUTS // 2, seed) == 0


@pytest.mark.parametrize("fuzz", [fuzz_sealed_manifests, fuzz_sealed_headers])
def test_nothing_that_was_sealed_by_somebody_who_means_harm_is_taken_for_what_it_is_not(
    tmp_path: Path, fuzz: Callable[[Path, int, int], int]
) -> None:
    assert fuzz(tmp_path, INPUTS, 0) == 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, dict[str, Any]]:
    return stored_manifest(tmp_path_factory.mktemp("kv"))


def stored_manifest(root: Path) -> tuple[Side, dict[str, Any]]:
    writer = side(root)
    save(writer, HANDLE)
    return writer, json.loads(writer.store.read_manifest(TENANT, HANDLE))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(document: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place] if place else []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        inner = (*place, key)
        found += places(value, inner) if isinstance(value, dict | list) else [inner]
    return found


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[place[0]] = changed(document[place[0]], place[1:], value)
    return copy


EXAMPLES = 300
"""`python -m bench.fuzz` tries 100,000 of each."""


def check_manifests(reader: Side, document: dict[str, Any], examples: int) -> None:
    """As if its writer had sealed it so: of another version, or bent on harm."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def refused_or_the_same(data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(places(document)))
        other = changed(document, place, data.draw(json_values))
        assume(json.dumps(document) != json.dumps(other))
        try:
            manifest = Manifest.from_bytes(json.dumps(other).encode())
        except InvalidManifest:
            return
        verdict = admitted(reader, manifest)
        assert isinstance(verdict, Admitted | Refused)
        if isinstance(verdict, Admitted):
            assert place[0] not in {"tenant", "revision", "descriptor", "tensors", "block_size", "format"}
            assert reader.loader.load(load_job(manifest), None) is not None

    refused_or_the_same()


def check_headers(examples: int) -> None:
    with TemporaryDirectory() as folder:
        writer = side(Path(folder))
        save(writer, HANDLE)
        block = manifest_of(writer, HANDLE).blocks[1]
        path = LocalStore(Path(folder)).block_path(TENANT, V12.digest, block.key)
        whole, _ = split_block(memoryview(path.read_bytes()))
    document = header_document(whole)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def unreadable_or_another(data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(places(document)))
        other = changed(document, place, data.draw(json_values))
        assume(json.dumps(document) != json.dumps(other))
        try:
            header = BlockHeader.read_from(BytesIO(resealed(other)))
        except BlockUnreadable:
            return
        assert header != whole
        assert header.to_bytes() == resealed(other)

    unreadable_or_another()


def test_a_manifest_that_says_otherwise_is_refused_or_says_the_same_of_what_is_loaded(
    stored: tuple[Side, dict[str, Any]],
) -> None:
    check_manifests(*stored, EXAMPLES)


def test_a_block_header_that_says_otherwise_is_unreadable_or_says_exactly_that() -> None:
    check_headers(EXAMPLES)


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b"[" * 100_000, b"\0" * 70], ids=len)
def test_odd_files_are_no_manifest(tmp_path: Path, data: bytes) -> None:
    reader = side(tmp_path)
    path = LocalStore(tmp_path).manifest_path(TENANT, HANDLE)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(InvalidManifest):
        manifest_of(reader, HANDLE)


def test_a_manifest_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    reader = side(tmp_path)
    path = LocalStore(tmp_path).manifest_path(TENANT, HANDLE)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(InvalidManifest, match="longer than"):
        manifest_of(reader, HANDLE)
