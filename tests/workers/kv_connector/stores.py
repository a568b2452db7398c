"""Both kinds of KV store under the same tests, and hands that reach into them past their own code."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

from tests.workers.kv_connector.s3 import S3Server, environment
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.marks import mark_of
from workers.kv_connector.object_store import ObjectStore
from workers.kv_connector.patience import Patience
from workers.kv_connector.store import BlockStore, ObjectName, StoredObject


class Hands(ABC):
    @abstractmethod
    def read(self, name: ObjectName) -> bytes: ...

    @abstractmethod
    def write(self, name: ObjectName, data: bytes) -> None: ...

    @abstractmethod
    def exists(self, name: ObjectName) -> bool: ...

    @abstractmethod
    def age(self, name: ObjectName, changed_ms: int) -> None:
        """As if it had been written then."""

    @abstractmethod
    def changed_ms(self, name: ObjectName) -> int: ...

    @abstractmethod
    def await_use(self, name: ObjectName) -> None:
        """Until a use that was marked in the background is there."""

    @abstractmethod
    def leave_over(self) -> None:
        """Something that only a writer had a use for that is gone."""


class FolderHands(Hands):
    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def read(self, name: ObjectName) -> bytes:
        return self._store.path(name).read_bytes()

    def write(self, name: ObjectName, data: bytes) -> None:
        path = self._store.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def exists(self, name: ObjectName) -> bool:
        return self._store.path(name).exists()

    def age(self, name: ObjectName, changed_ms: int) -> None:
        os.utime(self._store.path(name), ns=(changed_ms * 1_000_000, changed_ms * 1_000_000))

    def changed_ms(self, name: ObjectName) -> int:
        return self._store.path(name).stat().st_mtime_ns // 1_000_000

    def await_use(self, name: ObjectName) -> None:
        assert self.exists(name)

    def leave_over(self) -> None:
        self.write(ObjectName("tmp/half"), b"half")


class BucketHands(Hands):
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._ages: dict[ObjectName, int] = {}
        listed = store._objects

        def aged(folder: str) -> Iterator[StoredObject]:
            return (replace(o, changed_ms=self._ages.get(o.name, o.changed_ms)) for o in listed(folder))

        store._objects = aged  # type: ignore[method-assign]

    def read(self, name: ObjectName) -> bytes:
        return bytes(obstore.get(self._store._client, name).bytes())

    def write(self, name: ObjectName, data: bytes) -> None:
        obstore.put(self._store._client, name, data)

    def exists(self, name: ObjectName) -> bool:
        try:
            obstore.head(self._store._client, name)
        except FileNotFoundError:
            return False
        return True

    def age(self, name: ObjectName, changed_ms: int) -> None:
        self._ages[name] = changed_ms

    def changed_ms(self, name: ObjectName) -> int:
        (found,) = (o for o in self._store.list(name.partition("/")[0]) if o.name == name)
        return found.changed_ms

    def await_use(self, name: ObjectName) -> None:
        deadline = time.monotonic() + 30
        while not self.exists(mark_of(name)):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def leave_over(self) -> None:
        self.write(mark_of(ObjectName("manifests/tenant/kv_gone0000.json")), b"")


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files, which no test needs to outlive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty one, which the environment leads to."""
    for name, value in environment(s3_server.url).items():
        monkeypatch.setenv(name, value)
    return s3_server.make_bucket()


@pytest.fixture(params=["folder", "bucket"])
def block_store(request: pytest.FixtureRequest, tmp_path: Path, quick_disk: None) -> BlockStore:
    made: BlockStore
    if request.param == "folder":
        made = LocalStore(tmp_path / "kv")
    else:
        made = ObjectStore(request.getfixturevalue("bucket"), "some/prefix")
    made._patience = Patience(wait_s=30)  # a second is short where every core is busy
    return made


@pytest.fixture
def hands(block_store: BlockStore) -> Hands:
    if isinstance(block_store, LocalStore):
        return FolderHands(block_store)
    assert isinstance(block_store, ObjectStore)
    return BucketHands(block_store)
