"""An operator's hands on stored KV: nothing goes that was not chosen, and what could not go is said."""

import os
from pathlib import Path

import pytest

from service.domain.artifact import ArtifactId, BootId
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.stored import conversation, paths, put
from workers import kv_upkeep
from workers.kv_connector.catalog import Catalog, Contents
from workers.kv_connector.store import BlockStore
from workers.kv_upkeep import Selection, choose, forget, purge, quarantine, verify


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlockStore:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = BlockStore(tmp_path / "kv")
    put(store, "kv_old12000", conversation(1, shared=2), boot="boot_a", created_ms=1_000)
    put(store, "kv_new12000", conversation(2, shared=2), boot="boot_b", created_ms=2_000)
    put(store, "kv_new13000", conversation(1, shared=2), boot="boot_c", created_ms=3_000, own=V13)
    return store


def look(store: BlockStore) -> Contents:
    return Catalog(store).look()


def chosen(store: BlockStore, selection: Selection) -> set[str]:
    return {listed.artifact for listed in choose(look(store), selection).artifacts}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), {"kv_old12000", "kv_new12000", "kv_new13000"}),
        (Selection(artifacts=frozenset({ArtifactId("kv_new12000")})), {"kv_new12000"}),
        (Selection(revision=V13.digest), {"kv_new13000"}),
        (Selection(revision=V12.digest[:12]), {"kv_old12000", "kv_new12000"}),
        (Selection(since_ms=2_000), {"kv_new12000", "kv_new13000"}),
        (Selection(until_ms=2_000), {"kv_old12000"}),
        (Selection(since_ms=2_000, until_ms=3_000), {"kv_new12000"}),
        (Selection(boot=BootId("boot_b")), {"kv_new12000"}),
        (Selection(boot=BootId("boot_c"), revision=V12.digest), set()),
    ],
    ids=str,
)
def test_all_that_is_asked_for_must_match(
    store: BlockStore, selection: Selection, expected: set[str]
) -> None:
    assert chosen(store, selection) == expected


def test_a_boot_chooses_also_what_others_built_on_its_blocks(store: BlockStore) -> None:
    """The second conversation shares the blocks that the first one's engine made."""
    assert chosen(store, Selection(boot=BootId("boot_a"))) == {"kv_old12000", "kv_new12000"}
    contents = look(store)
    forget(contents, choose(contents, Selection(boot=BootId("boot_a"))))
    left = look(store)
    assert {listed.artifact for listed in left.artifacts} == {"kv_new13000"}
    assert kv_upkeep._made_by(left, BootId("boot_a")) == frozenset()


def test_forgetting_keeps_what_others_share_and_says_so(store: BlockStore) -> None:
    contents = look(store)
    removed = forget(contents, choose(contents, Selection(artifacts=frozenset({ArtifactId("kv_old12000")}))))
    assert (removed.artifacts, removed.blocks, len(removed.shared), removed.failed) == (1, 1, 2, [])
    left = look(store)
    assert not left.orphans()
    assert verify(left.artifacts) == []


def test_forgetting_a_revision_leaves_nothing_of_it(store: BlockStore) -> None:
    manifest = put(store, "kv_orphan00", conversation(9), own=V13)
    store.manifest_path("acme", manifest.artifact).unlink()
    contents = look(store)
    forget(contents, choose(contents, Selection(revision=V13.digest)))
    left = look(store)
    assert not [path for path in left.blocks if V13.digest in path.parts]
    assert verify(left.artifacts) == []
    assert len(left.artifacts) == 2


def test_what_could_not_be_deleted_is_reported_and_the_rest_goes(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = look(store)
    stuck = paths(store, put(store, "kv_stuck000", conversation(7)))[0]
    contents = look(store)
    unlink = Path.unlink

    def refuse_one(path: Path, *, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_one)
    removed = forget(contents, choose(contents, Selection()))
    assert removed.failed == [(stuck, "Operation not permitted")]
    assert set(look(store).blocks) == {stuck}
    assert not look(store).artifacts


def test_a_manifest_that_cannot_go_keeps_its_blocks(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = store.manifest_path("acme", ArtifactId("kv_new13000"))
    unlink = Path.unlink

    def refuse_one(path: Path, *, missing_ok: bool = False) -> None:
        if path == manifest:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_one)
    contents = look(store)
    removed = forget(contents, choose(contents, Selection(revision=V13.digest)))
    assert removed.failed == [(manifest, "Operation not permitted")]
    assert verify(look(store).artifacts) == []


def test_what_is_put_aside_is_found_by_nobody_and_can_be_purged(store: BlockStore) -> None:
    contents = look(store)
    quarantine(store, contents, choose(contents, Selection(revision=V12.digest)))
    left = look(store)
    assert {listed.artifact for listed in left.artifacts} == {"kv_new13000"}
    assert len(left.quarantined) == 2 + 4
    purge([found.path for found in left.quarantined])
    assert not look(store).quarantined


def test_verifying_names_each_damage_by_artifact(store: BlockStore) -> None:
    contents = look(store)
    assert verify(contents.artifacts) == []
    shared, own = contents.artifacts[0].blocks[0].path, contents.artifacts[0].blocks[2].path
    shared.write_bytes(shared.read_bytes()[:-1] + b"?")
    own.unlink()
    assert [(p.artifact, p.what) for p in verify(contents.artifacts)] == [
        ("kv_old12000", "is not what was written"),
        ("kv_old12000", "is missing"),
        ("kv_new12000", "is not what was written"),
    ]


def test_a_whole_block_under_another_name_is_found(store: BlockStore) -> None:
    contents = look(store)
    first, second = (block.path for block in contents.artifacts[0].blocks[:2])
    first.write_bytes(second.read_bytes())
    assert {p.what for p in verify(contents.artifacts)} == {"is another block, by its own header"}
