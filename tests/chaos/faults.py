"""What is broken, and where: every fault at every message of a turn's transactions, enumerated from a turn that went well."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from tests.chaos.wire import Message, Moment


class Kind(StrEnum):
    KILL_API = "kill_api"
    KILL_POSTGRES = "kill_postgres"
    KILL_BACKEND = "kill_backend"
    KILL_WORKER = "kill_worker"
    """The process of the worker's pool that the connection is of."""
    CUT = "cut"
    """Of one connection: the outcome of a COMMIT that was under way is unknown."""


OF_A_TURN = (Kind.KILL_API, Kind.KILL_POSTGRES, Kind.KILL_BACKEND, Kind.CUT)
OF_A_REBUILD = (Kind.KILL_WORKER, Kind.KILL_POSTGRES, Kind.KILL_BACKEND, Kind.CUT)
"""By how much they matter: the first two are tried at every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: Kind
    moment: Moment
    number: int
    """Of the message, counted from the request on."""

    def __str__(self) -> str:
        return f"{self.kind} {self.moment} message {self.number}"

    def due(self, passed: Sequence[Message]) -> bool:
        return len(passed) == self.number


def all_faults(trace: Sequence[Message], kinds: Sequence[Kind]) -> list[Fault]:
    """Grouped by kind and moment, in the order of the messages."""
    return [
        Fault(kind=kind, moment=moment, number=message.number)
        for kind in kinds
        for moment in Moment
        for message in trace
    ]


def choose(trace: Sequence[Message], runs: int, kinds: Sequence[Kind] = OF_A_TURN) -> list[Fault]:
    """So many of all: each message once, killing either; then every kind and moment at each commit; then the rest.

    What does not fit is left out evenly; more than there are come round again.
    """
    commits = {message.number for message in trace if message.statement.startswith("COMMIT")}
    everything = all_faults(trace, kinds)
    chosen: list[Fault] = []
    for level in range(4):
        group = [fault for fault in everything if _level(fault, commits, kinds[:2]) == level]
        room = runs - len(chosen)
        chosen += group if len(group) <= room else spread(group, room)
    return [*chosen, *islice(cycle(everything), max(0, runs - len(chosen)))]


def _level(fault: Fault, commits: set[int], kills: Sequence[Kind]) -> int:
    killed = fault.kind in kills and fault.moment is list(Moment)[fault.number % 2]
    if killed and fault.kind is kills[fault.number // 2 % 2]:
        return 0
    if fault.number in commits:
        return 1
    return 2 if killed else 3


def spread(faults: Sequence[Fault], count: int) -> list[Fault]:
    return [faults[index * len(faults) // count] for index in range(count)]
