"""Blocks that a transfer may touch, until the engine takes them back."""

import pytest

from workers.kv_connector.holds import GivenUp, Hold


def test_what_was_given_up_may_not_be_touched() -> None:
    hold = Hold()
    hold.begin()
    assert hold.give_up()
    with pytest.raises(GivenUp), hold.touching():
        pytest.fail("touched")
    for ask in (hold.begin, hold.require):
        with pytest.raises(GivenUp):
            ask()


def test_what_is_being_copied_is_not_given_up_until_the_copy_ends() -> None:
    hold = Hold()
    with hold.touching():
        with hold.touching():
            assert not hold.give_up()
        assert not hold.give_up()
        with hold.touching():
            pass
    assert hold.give_up()


def test_it_is_still_since_its_last_copy_and_not_before_it_began() -> None:
    times = iter([1.0, 5.0])
    hold = Hold(lambda: next(times))
    assert hold.still_since() is None
    hold.begin()
    assert hold.still_since() == 1.0
    with hold.touching():
        assert hold.still_since() == 1.0
    assert hold.still_since() == 5.0
