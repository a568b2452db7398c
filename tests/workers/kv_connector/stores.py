"""Both kinds of KV store under the same tests, and hands that reach into them past their own code."""

import os
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import BlockStore, ObjectName


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
        self._store.path(name).write_bytes(data)

    def exists(self, name: ObjectName) -> bool:
        return self._store.path(name).exists()

    def age(self, name: ObjectName, changed_ms: int) -> None:
        os.utime(self._store.path(name), ns=(changed_ms * 1_000_000, changed_ms * 1_000_000))

    def changed_ms(self, name: ObjectName) -> int:
        return self._store.path(name).stat().st_mtime_ns // 1_000_000

    def await_use(self, name: ObjectName) -> None:
        assert self.exists(name)

    def leave_over(self) -> None:
        (self._store.root / "tmp" / "half").write_bytes(b"half")


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files, which no test needs to outlive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=["folder"])
def block_store(request: pytest.FixtureRequest, tmp_path: Path, quick_disk: None) -> BlockStore:
    return LocalStore(tmp_path / "kv")


@pytest.fixture
def hands(block_store: BlockStore) -> Hands:
    assert isinstance(block_store, LocalStore)
    return FolderHands(block_store)
