"""The doorbell: a broker that is away costs a turn seconds at most, and is told of as such."""

import os
import signal
import time

import pytest

from service.domain.errors import Unavailable
from service.domain.plan import RebuildQueue
from service.queue import PATIENCE_S, Doorbell
from stack.valkey import EmbeddedValkey


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:9/0", "redis+socket:///nowhere.sock", "amqp://127.0.0.1:9//"]
)
def test_a_broker_that_is_not_there_is_unavailable_at_once(url: str) -> None:
    doorbell = Doorbell(url)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="did not take rebuild rb_1"):
        doorbell.ring("rb_1", RebuildQueue.INTERACTIVE)
    assert time.monotonic() - began < 1
    doorbell.close()


def test_a_broker_that_hangs_is_given_up(valkey_server: EmbeddedValkey) -> None:
    doorbell = Doorbell(valkey_server.url(6))
    doorbell.ring("rb_1", RebuildQueue.INTERACTIVE)
    os.kill(valkey_server.child.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            doorbell.ring("rb_2", RebuildQueue.INTERACTIVE)
        assert time.monotonic() - began < 2 * PATIENCE_S + 1
    finally:
        os.kill(valkey_server.child.pid, signal.SIGCONT)
    doorbell.ring("rb_3", RebuildQueue.INTERACTIVE)
    doorbell.close()
