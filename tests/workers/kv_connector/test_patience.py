"""Whoever waits for a store waits a little, and not again at once."""

import threading
import time
from collections.abc import Iterator

import pytest

from workers.kv_connector.patience import Patience


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Set once it may go on."""
    event = threading.Event()
    yield event
    event.set()


def test_an_answer_in_time_is_given(hanging: threading.Event) -> None:
    assert Patience().within(lambda: b"answer") == b"answer"


def test_an_error_is_raised_as_it_is_and_costs_no_pause() -> None:
    patience = Patience()

    def fails() -> bytes:
        raise FileNotFoundError(2, "no such thing")

    with pytest.raises(FileNotFoundError, match="no such thing"):
        patience.within(fails)
    assert patience.within(lambda: 1) == 1


def test_who_waited_in_vain_is_told_so(hanging: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"did not answer within 0\.05 s"):
        Patience(wait_s=0.05).within(hanging.wait)


def test_a_store_that_hangs_is_not_asked_again(hanging: threading.Event) -> None:
    patience = Patience(wait_s=0.05, pause_s=0)
    with pytest.raises(TimeoutError):
        patience.within(hanging.wait)
    asked = []
    with pytest.raises(TimeoutError, match="was not asked"):
        patience.within(lambda: asked.append(1))
    assert not asked


def test_a_store_that_hung_is_left_alone_for_a_pause_and_then_asked(hanging: threading.Event) -> None:
    patience = Patience(wait_s=0.05, pause_s=1.0)
    with pytest.raises(TimeoutError):
        patience.within(hanging.wait)
    late = patience._late
    assert late is not None
    hanging.set()
    late.join()
    with pytest.raises(TimeoutError, match="was not asked"):
        patience.within(lambda: 1)
    time.sleep(1.0)
    assert patience.within(lambda: 1) == 1
