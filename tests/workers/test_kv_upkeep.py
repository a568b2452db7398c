"""An operator's hands on stored KV: nothing goes that was not chosen, and what could not go is said."""

import pytest

from service.domain.artifact import ArtifactId, BootId
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.stored import conversation, names, put
from tests.workers.kv_connector.stores import Hands
from workers import kv_upkeep
from workers.kv_connector.catalog import Catalog, Contents
from workers.kv_connector.store import BlockStore, ObjectName, manifest_name
from workers.kv_upkeep import Selection, choose, forget, purge, quarantine, verify


@pytest.fixture(autouse=True)
def stored(block_store: BlockStore) -> None:
    put(block_store, "kv_old12000", conversation(1, shared=2), boot="boot_a", created_ms=1_000)
    put(block_store, "kv_new12000", conversation(2, shared=2), boot="boot_b", created_ms=2_000)
    put(block_store, "kv_new13000", conversation(1, shared=2), boot="boot_c", created_ms=3_000, own=V13)


def look(store: BlockStore) -> Contents:
    return Catalog(store).look()


def chosen(store: BlockStore, selection: Selection) -> set[str]:
    return {listed.artifact for listed in choose(store, look(store), selection).artifacts}


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
    ids=[
        "everything",
        "a handle",
        "a revision",
        "the beginning of one",
        "since",
        "until",
        "between",
        "a boot",
        "nothing",
    ],
)
def test_all_that_is_asked_for_must_match(
    block_store: BlockStore, selection: Selection, expected: set[str]
) -> None:
    assert chosen(block_store, selection) == expected


def test_a_boot_chooses_also_what_others_built_on_its_blocks(block_store: BlockStore) -> None:
    """The second conversation shares the blocks that the first one's engine made."""
    assert chosen(block_store, Selection(boot=BootId("boot_a"))) == {"kv_old12000", "kv_new12000"}
    contents = look(block_store)
    forget(block_store, contents, choose(block_store, contents, Selection(boot=BootId("boot_a"))))
    left = look(block_store)
    assert {listed.artifact for listed in left.artifacts} == {"kv_new13000"}
    assert kv_upkeep._made_by(block_store, left, BootId("boot_a")) == frozenset()


def test_forgetting_keeps_what_others_share_and_says_so(block_store: BlockStore) -> None:
    contents = look(block_store)
    selection = Selection(artifacts=frozenset({ArtifactId("kv_old12000")}))
    removed = forget(block_store, contents, choose(block_store, contents, selection))
    assert (removed.artifacts, removed.blocks, len(removed.shared), removed.failed) == (1, 1, 2, [])
    left = look(block_store)
    assert not left.orphans()
    assert verify(block_store, left.artifacts) == []


def test_forgetting_a_revision_leaves_nothing_of_it(block_store: BlockStore) -> None:
    manifest = put(block_store, "kv_orphan00", conversation(9), own=V13)
    block_store.remove(manifest_name("acme", manifest.artifact))
    contents = look(block_store)
    forget(block_store, contents, choose(block_store, contents, Selection(revision=V13.digest)))
    left = look(block_store)
    assert not [name for name in left.blocks if V13.digest in name]
    assert verify(block_store, left.artifacts) == []
    assert len(left.artifacts) == 2


def refuse_to_remove(store: BlockStore, stuck: ObjectName, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = store.remove

    def refuse_one(name: ObjectName) -> bool:
        if name == stuck:
            raise PermissionError(1, "Operation not permitted")
        return remove(name)

    monkeypatch.setattr(store, "remove", refuse_one)


def test_what_could_not_be_deleted_is_reported_and_the_rest_goes(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = names(put(block_store, "kv_stuck000", conversation(7)))[0]
    contents = look(block_store)
    refuse_to_remove(block_store, stuck, monkeypatch)
    removed = forget(block_store, contents, choose(block_store, contents, Selection()))
    assert removed.failed == [(stuck, "Operation not permitted")]
    assert set(look(block_store).blocks) == {stuck}
    assert not look(block_store).artifacts


def test_a_manifest_that_cannot_go_keeps_its_blocks(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_name("acme", ArtifactId("kv_new13000"))
    refuse_to_remove(block_store, manifest, monkeypatch)
    contents = look(block_store)
    removed = forget(block_store, contents, choose(block_store, contents, Selection(revision=V13.digest)))
    assert removed.failed == [(manifest, "Operation not permitted")]
    assert verify(block_store, look(block_store).artifacts) == []


def test_what_is_put_aside_is_found_by_nobody_and_can_be_purged(block_store: BlockStore) -> None:
    contents = look(block_store)
    quarantine(block_store, contents, choose(block_store, contents, Selection(revision=V12.digest)))
    left = look(block_store)
    assert {listed.artifact for listed in left.artifacts} == {"kv_new13000"}
    assert len(left.quarantined) == 2 + 4
    purge(block_store, [found.name for found in left.quarantined])
    assert not look(block_store).quarantined


def test_verifying_names_each_damage_by_artifact(block_store: BlockStore, hands: Hands) -> None:
    contents = look(block_store)
    assert verify(block_store, contents.artifacts) == []
    shared, own = contents.artifacts[0].blocks[0].name, contents.artifacts[0].blocks[2].name
    hands.write(shared, hands.read(shared)[:-1] + b"?")
    block_store.remove(own)
    assert [(p.artifact, p.what) for p in verify(block_store, contents.artifacts)] == [
        ("kv_old12000", "is not what was written"),
        ("kv_old12000", "is missing"),
        ("kv_new12000", "is not what was written"),
    ]


def test_a_whole_block_under_another_name_is_found(block_store: BlockStore, hands: Hands) -> None:
    contents = look(block_store)
    first, second = (block.name for block in contents.artifacts[0].blocks[:2])
    hands.write(first, hands.read(second))
    assert {p.what for p in verify(block_store, contents.artifacts)} == {
        "is another block, by its own header"
    }
