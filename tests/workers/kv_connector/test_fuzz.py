"""Whatever lies in the store, the readers of manifests and blocks neither fall over it nor take it for KV."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.domain.artifact import Admitted, ArtifactId, Manifest, Refused, admit
from service.domain.errors import InvalidManifest
from service.domain.evidence import Refusal
from tests.workers.kv_connector.mutations import mutants
from tests.workers.kv_connector.paged_fakes import TENANT, TOKENS, Side, load_job, manifest_of, save, side
from workers.kv_connector.local_store import LocalStore
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


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_manifest_is_taken_for_one(tmp_path: Path, seed: int) -> None:
    assert fuzz_manifests(tmp_path, INPUTS, seed) == 0


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_block_is_loaded(tmp_path: Path, seed: int) -> None:
    assert fuzz_blocks(tmp_path, INPUTS // 2, seed) == 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, dict[str, Any]]:
    writer = side(tmp_path_factory.mktemp("kv"))
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


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_manifest_that_says_otherwise_is_refused_or_says_the_same_of_what_is_loaded(
    stored: tuple[Side, dict[str, Any]], data: st.DataObject
) -> None:
    """As if its writer had sealed it so: of another version, or bent on harm."""
    reader, document = stored
    place = data.draw(st.sampled_from(places(document)))
    before = json.dumps(document)
    document = changed(document, place, data.draw(json_values))
    assume(json.dumps(document) != before)
    try:
        manifest = Manifest.from_bytes(json.dumps(document).encode())
    except InvalidManifest:
        return
    verdict = admit(
        manifest,
        own=reader.paged.own,
        tenant=TENANT,
        prompt=[*TOKENS, 1, 2],
        tensors=reader.paged.tensors,
        now_ms=1,
    )
    assert isinstance(verdict, Admitted | Refused)
    if isinstance(verdict, Admitted):
        assert place[0] not in {"tenant", "revision", "descriptor", "tensors", "block_size", "format"}
        assert reader.loader.load(load_job(manifest), None) is not None


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
