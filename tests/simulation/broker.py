"""The broker: messages are taken late off, given back when their taker dies, and lost, doubled, delayed or refused at times; it is away, emptied or restored from an old copy."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from service.domain.errors import Unavailable
from service.domain.events import TurnId
from service.domain.plan import RebuildQueue
from service.queue import REBUILD_TASK, TURN_TASK
from tests.simulation.faults import Faults, Moment
from tests.simulation.process import Process

FAULTS_OF_A_MESSAGE = ("lost", "doubled", "delayed", "refused")
LONGEST_DELAY_S = 12.0
WORKER_LOST_S = 2.0
MOST_RESTORED = 6


@dataclass(frozen=True, slots=True)
class Message:
    """An id, and of what; the row is the truth."""

    task: str
    name: str


@dataclass(slots=True)
class Bell:
    """In the place of a `Doorbell`: what one process rings with."""

    broker: "Broker"
    process: Process

    def ring(self, rebuild: str, queue: RebuildQueue) -> None:
        self.broker.ring(self.process, Message(REBUILD_TASK, rebuild), queue)

    def ring_turn(self, turn: TurnId) -> None:
        self.broker.ring(self.process, Message(TURN_TASK, turn), RebuildQueue.INTERACTIVE)


@dataclass(slots=True)
class Broker:
    faults: Faults
    queues: dict[RebuildQueue, deque[Message]] = field(
        default_factory=lambda: {queue: deque() for queue in RebuildQueue}
    )
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)
    away: bool = False
    ever: list[tuple[Message, RebuildQueue]] = field(default_factory=list)
    """All that was ever put."""

    def ring(self, process: Process, message: Message, queue: RebuildQueue) -> None:
        """Raises: Unavailable."""
        if not process.alive:
            return
        if self.faults.meet(process, ["broker.ring"], Moment.BEFORE).value != "go on" or self.away:
            raise Unavailable("The broker did not take it.")
        self._take(message, queue)
        if self.faults.meet(process, ["broker.ring"], Moment.AFTER).value != "go on":
            raise Unavailable("The broker did not say that it took it.")

    async def receive(self, queues: tuple[RebuildQueue, ...]) -> tuple[Message, RebuildQueue]:
        while True:
            for queue in () if self.away else queues:
                if self.queues[queue]:
                    return self.queues[queue].popleft(), queue
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            await waiter

    def give_back(self, message: Message, queue: RebuildQueue) -> None:
        """Of a taker that died before it had acknowledged."""
        delay_s = self.faults.random.random() * WORKER_LOST_S
        asyncio.get_running_loop().call_later(delay_s, self._put, message, queue)

    def forget_everything(self) -> None:
        for queue in self.queues.values():
            queue.clear()

    def restore(self) -> None:
        """From a copy of some time ago, in which some messages waited that were taken since."""
        self.forget_everything()
        copied = self.faults.random.randrange(len(self.ever) + 1)
        for message, queue in self.ever[max(0, copied - MOST_RESTORED) : copied]:
            self._put(message, queue)

    def go_away(self, for_s: float) -> None:
        """What waits is kept."""
        self.away = True
        asyncio.get_running_loop().call_later(for_s, self.come_back)

    def come_back(self) -> None:
        self.away = False
        self._wake()

    def _take(self, message: Message, queue: RebuildQueue) -> None:
        struck = self.faults.strikes(self.faults.rates.message, "message", FAULTS_OF_A_MESSAGE)
        if struck == "refused":
            raise Unavailable("The broker did not take it.")
        if struck == "lost":
            return
        if struck == "delayed":
            delay_s = self.faults.random.random() * LONGEST_DELAY_S
            asyncio.get_running_loop().call_later(delay_s, self._put, message, queue)
            return
        for _ in range(3 if struck == "doubled" else 1):
            self._put(message, queue)

    def _put(self, message: Message, queue: RebuildQueue) -> None:
        self.queues[queue].append(message)
        self.ever.append((message, queue))
        self._wake()

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
