"""Object stores that are gone, forbidden, full, slow or cut off: a reason says why, and nothing half-read is taken for KV."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.artifact import ArtifactId, Manifest, RefusalReason, Refused
from service.domain.errors import InvalidInput
from service.domain.evidence import Loaded, Published, Refusal
from stack.ports import find_free_port
from tests.domain.descriptors import V12
from tests.workers.kv_connector.paged_fakes import TENANT, Side, load_job, manifest_of, save, side
from tests.workers.kv_connector.s3 import HANGS, Front, S3Server, front_of
from tests.workers.kv_connector.stored import conversation, put
from workers.kv_connector.catalog import Catalog
from workers.kv_connector.object_store import ObjectStore
from workers.kv_connector.offers import read_offer
from workers.kv_connector.store import manifest_name
from workers.kv_connector.store_address import open_store

HANDLE = "kv_0123456789"


@pytest.fixture
def front(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    with front_of(s3_server.url) as front:
        monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
        yield front


@pytest.fixture
def behind_front(front: Front, bucket: str) -> ObjectStore:
    return ObjectStore(bucket, "")


def refusal_of(outcome: Loaded | Refusal) -> RefusalReason:
    assert isinstance(outcome, Refusal)
    return outcome.reason


def await_requests(front: Front) -> None:
    deadline = time.monotonic() + 30
    while not front.requests and time.monotonic() < deadline:
        time.sleep(0.01)


def offered(store: ObjectStore) -> RefusalReason:
    refused = read_offer(store, TENANT, ArtifactId(HANDLE))
    assert isinstance(refused, Refused)
    assert "\n" not in refused.detail
    return refused.reason


def assert_supplies_and_takes_nothing(there: Side, gone: ObjectStore) -> None:
    """`there` has published under HANDLE."""
    job = load_job(manifest_of(there, HANDLE))
    assert offered(gone) is RefusalReason.STORE_UNREACHABLE
    without = side(gone, seed=1)
    assert refusal_of(without.loader.load(job, None)) is RefusalReason.STORE_UNREACHABLE
    said = save(without, "kv_second0000")
    assert isinstance(said, str)
    assert said.startswith("the store refused: ")
    assert "\n" not in said


def test_a_store_that_is_unreachable_supplies_nothing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = side(ObjectStore(bucket, ""))
    save(there, HANDLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    assert_supplies_and_takes_nothing(there, ObjectStore(bucket, ""))


def test_a_bucket_that_is_missing_is_no_missing_artifact(bucket: str) -> None:
    there = side(ObjectStore(bucket, ""))
    save(there, HANDLE)
    assert_supplies_and_takes_nothing(there, ObjectStore("no-such-bucket", ""))


@pytest.mark.parametrize("status", [403, 401, 500, 503])
def test_a_store_that_refuses_supplies_nothing(
    bucket: str, s3_server: S3Server, front: Front, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    gone = ObjectStore(bucket, "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    there = side(ObjectStore(bucket, ""))
    save(there, HANDLE)
    front.fail(status)
    assert_supplies_and_takes_nothing(there, gone)


def test_a_read_only_store_is_still_read(front: Front, behind_front: ObjectStore) -> None:
    save(side(behind_front), HANDLE)
    front.fail(403, "PUT", "POST", "DELETE")
    reader = side(behind_front, seed=1)
    assert isinstance(reader.loader.load(load_job(manifest_of(reader, HANDLE)), None), Loaded)
    assert "the store refused: " in str(save(reader, "kv_second0000"))
    behind_front.quarantine(TENANT, V12.digest, "ab" * 32)
    behind_front.put_descriptor(V12)


def test_a_full_store_publishes_nothing_and_a_freed_one_does(front: Front, behind_front: ObjectStore) -> None:
    front.fail(507, "PUT")
    assert "the store refused: " in str(save(side(behind_front), HANDLE))
    assert Catalog(behind_front).look().artifacts == ()
    front.fail(None)
    assert isinstance(save(side(behind_front), HANDLE), Published)


def test_a_store_that_fills_up_amid_the_blocks_leaves_no_artifact(
    front: Front, behind_front: ObjectStore
) -> None:
    front.fault = lambda method, path: 507 if method == "PUT" and "/manifests/" in path else None
    assert "the store refused: " in str(save(side(behind_front), HANDLE))
    contents = Catalog(behind_front).look()
    assert contents.artifacts == ()
    assert len(contents.orphans()) == 3


def test_a_store_that_hangs_stops_the_scheduler_for_a_moment_only(
    front: Front, behind_front: ObjectStore
) -> None:
    put(behind_front, HANDLE, conversation(1), tenant=TENANT)
    front.fail(HANGS)
    front.requests.clear()
    for _ in range(100):
        assert offered(behind_front) is RefusalReason.STORE_UNREACHABLE
    await_requests(front)
    assert [method for method, _ in front.requests] == ["GET"]


def test_a_store_that_hangs_holds_up_no_use(front: Front, behind_front: ObjectStore) -> None:
    front.fail(HANGS, "PUT")
    for number in range(500):
        behind_front.use_manifest(TENANT, ArtifactId(f"kv_{number:08}"))
    await_requests(front)
    assert [method for method, _ in front.requests] == ["PUT"]


@pytest.mark.parametrize("cut", [0, 20, 100])
def test_a_body_that_is_cut_is_never_taken_for_a_block(
    front: Front, behind_front: ObjectStore, cut: int
) -> None:
    save(side(behind_front), HANDLE)
    reader = side(behind_front, seed=1)
    job = load_job(manifest_of(reader, HANDLE))
    before = {name: cache.clone() for name, cache in reader.caches.items()}
    front.cut = cut
    assert refusal_of(reader.loader.load(job, None)) is RefusalReason.STORE_UNREACHABLE
    assert all(cache.equal(before[name]) for name, cache in reader.caches.items())
    front.cut = None
    assert isinstance(reader.loader.load(job, None), Loaded)


def test_a_body_that_is_cut_once_is_taken_up_where_it_ended(front: Front, behind_front: ObjectStore) -> None:
    writer, reader = side(behind_front), side(behind_front, seed=1)
    save(writer, HANDLE)
    job = load_job(manifest_of(reader, HANDLE))
    front.cut = 600
    assert isinstance(reader.loader.load(job, None), Loaded)
    for name, cache in reader.caches.items():
        assert cache[0].equal(writer.caches[name][5])


def test_a_manifest_whose_answer_was_lost_is_published_all_the_same(
    front: Front, behind_front: ObjectStore
) -> None:
    lost: list[str] = []

    def once(method: str, path: str) -> int | None:
        if method == "PUT" and "/manifests/" in path and not lost:
            lost.append(path)
            return 503
        return None

    front.answered = once
    assert isinstance(save(side(behind_front), HANDLE), Published)
    assert lost
    assert isinstance(read_offer(behind_front, TENANT, ArtifactId(HANDLE)), Manifest)


def test_blocks_whose_answer_was_lost_are_published_all_the_same(
    front: Front, behind_front: ObjectStore
) -> None:
    lost: set[str] = set()

    def once(method: str, path: str) -> int | None:
        if method == "PUT" and path not in lost:
            lost.add(path)
            return 503
        return None

    front.answered = once
    assert isinstance(save(side(behind_front), HANDLE), Published)
    reader = side(behind_front, seed=1)
    assert isinstance(reader.loader.load(load_job(manifest_of(reader, HANDLE)), None), Loaded)


def test_blocks_are_there_before_the_manifest_names_them(front: Front, behind_front: ObjectStore) -> None:
    save(side(behind_front), HANDLE)
    puts = [path for method, path in front.requests if method == "PUT"]
    assert len(puts) == 4
    assert all("/blocks/" in path for path in puts[:3])
    assert "/manifests/" in puts[3]


def test_a_block_that_is_kept_is_marked_once_in_a_while(front: Front, behind_front: ObjectStore) -> None:
    manifest = put(behind_front, HANDLE, conversation(1), tenant=TENANT)
    front.requests.clear()
    for _ in range(5):
        assert behind_front.keep_block(TENANT, manifest.revision, manifest.blocks[0].key)
    assert [method for method, _ in front.requests].count("PUT") == 1


def test_removing_an_artifact_removes_its_mark(behind_front: ObjectStore) -> None:
    manifest = put(behind_front, HANDLE, conversation(1), tenant=TENANT)
    behind_front.keep_block(TENANT, manifest.revision, manifest.blocks[0].key)
    for found in [*behind_front.list("blocks"), *behind_front.list("manifests")]:
        behind_front.remove(found.name)
    assert not list(behind_front.leftovers(()))


def test_what_stands_has_no_leftovers(behind_front: ObjectStore) -> None:
    manifest = put(behind_front, HANDLE, conversation(1), tenant=TENANT)
    behind_front.keep_block(TENANT, manifest.revision, manifest.blocks[0].key)
    assert not Catalog(behind_front).look().leftovers


def test_two_prefixes_of_a_bucket_are_two_stores(bucket: str) -> None:
    put(ObjectStore(bucket, "a"), HANDLE, conversation(1))
    assert Catalog(ObjectStore(bucket, "b")).look().artifacts == ()
    assert not list(ObjectStore(bucket, "").list("manifests"))
    assert [found.name for found in ObjectStore(bucket, "a").list("manifests")] == [
        manifest_name("acme", ArtifactId(HANDLE))
    ]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(403, "403"), (404, "bucket"), (500, "500")],
)
def test_a_store_that_cannot_be_used_is_told_in_one_line(
    front: Front, behind_front: ObjectStore, fault: int, cause: str
) -> None:
    behind_front.require(make=True)
    front.fail(fault)
    with pytest.raises(InvalidInput, match="does not answer") as caught:
        behind_front.require(make=True)
    assert cause in str(caught.value)
    assert "AWS_ENDPOINT_URL" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_is_no_address_is_told_in_one_line(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore panics there, which no `except Exception` would catch."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    store = ObjectStore(bucket, "")
    with pytest.raises(
        InvalidInput, match=r"does not answer \(obstore gave up: .*AWS_ENDPOINT_URL"
    ) as caught:
        store.require(make=True)
    assert "\n" not in str(caught.value)
    assert offered(store) is RefusalReason.STORE_UNREACHABLE


def test_a_setting_that_is_none_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "perhaps")
    with pytest.raises(
        InvalidInput, match=r"with this AWS_\* environment: .*\"perhaps\" as boolean"
    ) as caught:
        open_store("s3://bucket")
    assert "\n" not in str(caught.value)


def test_without_obstore_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(__import__("sys").modules, "workers.kv_connector.object_store", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(InvalidInput, match=r"'s3://bucket/kv' needs obstore: pip install obstore"):
        open_store("s3://bucket/kv")
    open_store(str(tmp_path))
