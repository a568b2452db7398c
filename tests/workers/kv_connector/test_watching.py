"""The scheduler side asks after weights in another process, and is never left without an answer that it takes for one."""

import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from service.domain.artifact import BootId
from service.domain.errors import InvalidInput
from workers.kv_connector import watching
from workers.kv_connector.watching import WatchClient, WatchServer, address_of


@dataclass
class FakeWatch:
    changes: int = 0
    serves_s: float = 0.0
    asked: int = 0
    trouble: Exception | None = None
    delay_s: float = 0.0

    def glance(self) -> tuple[int, float]:
        self.asked += 1
        time.sleep(self.delay_s)
        if self.trouble is not None:
            raise self.trouble
        return self.changes, self.serves_s


@dataclass
class Pair:
    watch: FakeWatch = field(default_factory=FakeWatch)
    address: str = field(default_factory=lambda: address_of(BootId(secrets.token_hex(8)), 0))
    server: WatchServer = field(init=False)
    client: WatchClient = field(init=False)

    def __post_init__(self) -> None:
        self.server = WatchServer(self.address, cast("Any", self.watch))
        self.client = WatchClient(self.address)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.client._disconnect()
    pair.server.close()


def test_it_is_told_how_often_they_changed(pair: Pair) -> None:
    assert [pair.client.changes() for _ in range(3)] == [0, 0, 0]
    pair.watch.changes = 2
    assert pair.client.changes() == 2
    assert pair.watch.asked == 4


def test_it_does_not_ask_again_while_the_last_answer_serves(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.watch.serves_s = 60.0
    assert [pair.client.changes() for _ in range(3)] == [0, 0, 0]
    assert pair.watch.asked == 1
    pair.watch.changes = 1
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert pair.client.changes() == 1


def test_weights_that_cannot_be_looked_at_are_not_taken_for_unchanged(pair: Pair) -> None:
    pair.client.changes()
    pair.watch.trouble = RuntimeError("CUDA error")
    for _ in range(2):
        with pytest.raises(OSError, match="cannot look at its weights"):
            pair.client.changes()
    pair.watch.trouble = None
    assert pair.client.changes() == 0, "and once they can, it goes on"


def test_a_worker_that_does_not_answer_is_not_waited_for_long(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PATIENCE_S", 0.1)
    pair.watch.delay_s = 1.0
    with pytest.raises(TimeoutError):
        pair.client.changes()
    pair.watch.delay_s, pair.watch.changes = 0.0, 7
    assert pair.client.changes() == 7, "never the late answer to another question"


def test_without_a_worker_there_is_no_answer(pair: Pair) -> None:
    nobody = WatchClient(address_of(BootId("boot_nobody"), 0))
    with pytest.raises(ConnectionRefusedError):
        nobody.changes()
    with pytest.raises(InvalidInput, match="rank 0 must run on the machine"):
        nobody.required()
    assert pair.watch.asked == 0
    assert pair.client.required() is pair.client
    assert pair.watch.asked == 1


def test_other_users_of_the_machine_get_no_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_user_of", lambda _: -1)
    with pytest.raises(OSError, match=r"cannot look|reset|Broken"):
        pair.client.changes()
    assert pair.watch.asked == 0


def test_each_boot_and_rank_has_an_address_of_its_own() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        taken.bind(address_of(BootId("boot_a"), 0))
        for boot, rank in (("boot_a", 1), ("boot_b", 0)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.bind(address_of(BootId(boot), rank))
