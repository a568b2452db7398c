"""Marks of use and keeping: rare, in the background where a turn waits, and never a reason to fail."""

import threading
import time

import pytest

from workers.kv_connector import marks as module
from workers.kv_connector.marks import MARK_EVERY_S, Marks, mark_of, marked_by
from workers.kv_connector.store import ObjectName

NAME, OTHER = ObjectName("manifests/t/kv_a.json"), ObjectName("manifests/t/kv_b.json")


class Bucket:
    def __init__(self) -> None:
        self.puts: list[ObjectName] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: OSError | None = None

    def put(self, name: ObjectName) -> None:
        self.goes_on.wait(60)
        self.puts.append(name)
        if self.error is not None:
            raise self.error

    def await_puts(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.puts) < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_mark_lies_beside_what_it_marks() -> None:
    assert mark_of(NAME) == "marks/manifests/t/kv_a.json"
    assert marked_by(mark_of(NAME)) == NAME


def test_each_object_is_marked_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, clock = Bucket(), [1000.0]
    marks = Marks(bucket.put)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for name in (NAME, NAME, OTHER):
        marks.make(name)
    assert bucket.puts == [mark_of(NAME), mark_of(OTHER)]
    clock[0] += MARK_EVERY_S
    marks.make(NAME)
    assert bucket.puts == [mark_of(NAME), mark_of(OTHER), mark_of(NAME)]


def test_a_mark_that_failed_is_tried_again_at_once() -> None:
    bucket = Bucket()
    bucket.error = PermissionError(13, "no")
    marks = Marks(bucket.put)
    for _ in range(2):
        with pytest.raises(PermissionError):
            marks.make(NAME)
    marks.make_soon(NAME)
    bucket.await_puts(3)


def test_nobody_waits_for_the_mark_of_a_use() -> None:
    bucket = Bucket()
    bucket.goes_on.clear()
    marks = Marks(bucket.put)
    marks.make_soon(NAME)
    assert bucket.puts == []
    bucket.goes_on.set()
    bucket.await_puts(1)


def test_marks_that_nobody_takes_are_dropped_and_may_come_again() -> None:
    bucket = Bucket()
    bucket.goes_on.clear()
    marks = Marks(bucket.put)
    many = [ObjectName(f"manifests/t/kv_{number}.json") for number in range(module.WAITING + 10)]
    for name in many:
        marks.make_soon(name)
    bucket.goes_on.set()
    bucket.await_puts(module.WAITING)
    assert mark_of(many[-1]) not in bucket.puts
    deadline = time.monotonic() + 30
    while mark_of(many[-1]) not in bucket.puts:
        assert time.monotonic() < deadline
        marks.make_soon(many[-1])
        time.sleep(0.001)


def test_what_is_remembered_of_marks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    marks = Marks(Bucket().put)
    for number in range(10):
        marks.make(ObjectName(str(number)))
    assert len(marks._made) == 3
