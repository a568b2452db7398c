"""The scheduler side learns what the worker side sees of its weights, and takes no silence for an answer."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from service.domain.errors import InvalidInput
from workers.kv_connector import watching
from workers.kv_connector.watching import WatchPost, WatchReader, path_of

DEADLINE_S = 30.0


@dataclass
class FakeWatch:
    changes: int = 0
    looks: int = 0
    trouble: Exception | None = None

    def look(self) -> int:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return self.changes

    glance = look


@pytest.fixture
def watch() -> FakeWatch:
    return FakeWatch()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a folder that is not there yet: the worker may come before the scheduler."""
    return path_of(tmp_path / "run", 0)


@pytest.fixture
def post(watch: FakeWatch, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchPost]:
    """It looks only when it is told to, or it would look between a test's lines."""
    monkeypatch.setattr(watching, "EVERY_S", 3600.0)
    post = WatchPost(path, cast("Any", watch))
    yield post
    post.close()


@pytest.mark.parametrize("look", ["look", "glance"])
def test_what_the_worker_side_sees_the_scheduler_side_reads(
    watch: FakeWatch, post: WatchPost, path: Path, look: str
) -> None:
    reader = WatchReader(path)
    assert reader.changes() == 0
    watch.changes = 2
    assert reader.changes() == 0, "nobody has looked"
    assert getattr(post, look)() == 2
    assert reader.changes() == 2


def test_it_looks_by_itself_again_and_again(
    watch: FakeWatch, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.01)
    post = WatchPost(path, cast("Any", watch))
    reader, deadline = WatchReader(path), time.monotonic() + DEADLINE_S
    for changes in (1, 2):
        watch.changes = changes
        while reader.changes() != changes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    post.close()
    looks = watch.looks
    time.sleep(0.1)
    assert watch.looks == looks, "and no more, once it is closed"


def test_weights_that_cannot_be_looked_at_are_taken_for_changed(
    watch: FakeWatch, post: WatchPost, path: Path
) -> None:
    watch.trouble = RuntimeError("CUDA error")
    assert post.look() == 1
    assert WatchReader(path).changes() == 1
    watch.trouble = None
    assert post.look() == 1, "what happened meanwhile nobody knows"


def test_who_has_not_looked_for_long_is_not_believed(
    watch: FakeWatch, post: WatchPost, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = WatchReader(path)
    post.look()
    later = time.monotonic() + watching.STALE_S + 1
    with monkeypatch.context() as clock:
        clock.setattr(time, "monotonic", lambda: later)
        with pytest.raises(TimeoutError, match="no more"):
            reader.changes()
        post.look()
        assert reader.changes() == 0
    assert watch.looks == 2


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_where_no_worker_writes_the_weights_are_not_watched(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match="rank 0 must run on the machine"):
        WatchReader(path)


def test_a_boot_before_is_not_asked(watch: FakeWatch, post: WatchPost, path: Path) -> None:
    before = WatchReader(path)
    watch.changes = 7
    another = WatchPost(path, cast("Any", FakeWatch()))
    post.look()
    assert (before.changes(), WatchReader(path).changes()) == (7, 0)
    another.close()


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    assert path_of(tmp_path, 0) != path_of(tmp_path, 1)
