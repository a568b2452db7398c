"""Items shared by several threads: each is taken once, and the first error ends them all."""

import threading
from collections.abc import Iterable

import pytest

from workers.kv_connector.lanes import Lanes


def test_each_item_is_taken_exactly_once() -> None:
    taken: list[int] = []
    lanes = Lanes("test", width=4)
    lanes.each(range(1000), taken.extend)
    lanes.shutdown()
    assert sorted(taken) == list(range(1000))


def test_lanes_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=10)
    lanes = Lanes("test", width=3)

    def lane(items: Iterable[int]) -> None:
        for _ in items:
            meeting.wait()

    lanes.each(range(3), lane)
    lanes.shutdown()


def test_the_first_error_ends_every_lane_and_is_raised() -> None:
    taken: list[int] = []

    def lane(items: Iterable[int]) -> None:
        for item in items:
            taken.append(item)
            if item == 3:
                raise OSError("the disk is gone")

    lanes = Lanes("test", width=2)
    with pytest.raises(OSError, match="the disk is gone"):
        lanes.each(range(1_000_000), lane)
    lanes.shutdown()
    assert len(taken) < 1_000_000


def test_lanes_serve_again_after_an_error() -> None:
    lanes = Lanes("test", width=2)

    def fail(_items: Iterable[int]) -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        lanes.each([0], fail)
    taken: list[int] = []
    lanes.each([1, 2], taken.extend)
    lanes.shutdown()
    assert sorted(taken) == [1, 2]
