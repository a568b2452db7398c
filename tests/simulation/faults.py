"""What goes wrong, where: at every step of every actor, before it and after it, chosen by the seed or by name."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from random import Random
from typing import Protocol

LATENCY_S = 0.02
LONGEST_STOP_S = 15.0
WEIGHT = {"api": 1.0, "worker": 10.0, "beat": 0.3, "engine": 0.3, "operator": 0.0}
"""Of faults at a step: some actors have many steps, and some have few."""


class Moment(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class Verdict(StrEnum):
    GO_ON = "go on"
    DIE = "die"
    LOSE = "lose"
    """The one who asked is told of a broken connection, whether it happened or not."""


class Victim(Protocol):
    name: str
    kind: str
    stopped_until_s: float

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """Of an actor: a transaction by the function that it is, or by an event it appends; a request to an engine; a message.

    One of each, by `step`: they are counted a thousand times a seed.
    """

    name: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.moment} {self.name}"


@cache
def step(name: str, moment: Moment) -> Step:
    return Step(name=name, moment=moment)


class Storm(StrEnum):
    """What befalls all at once."""

    SERVER_AWAY = "server away"
    SERVER_SLOW = "server slow"
    STORE_AWAY = "store away"
    STORE_SLOW = "store slow"
    STORE_WIPED = "store wiped"
    DAMAGE = "damage"
    FORGE = "forge"
    BROKER_AWAY = "broker away"
    BROKER_EMPTIED = "broker emptied"
    BROKER_RESTORED = "broker restored"
    """From a copy of some time ago: what came since is lost, and what was done since comes again."""
    WORKERS = "workers die"
    APIS = "APIs die"
    BEAT = "the beat dies"
    ENGINE_STOPS = "engine stops"
    PREFILL_DIES = "prefill engines die"
    PREFILL_STOPS = "prefill engines stop"
    PREFILL_EXCHANGED = "prefill engines come back as another revision's"
    DECODE_DIES = "decode engines die"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """At one step, the `nth` time that it is reached: a crash of who is there, or a storm."""

    step: Step
    nth: int = 1
    storm: Storm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per step, until the time of faults is over."""

    crash: float = 0.0
    stop: float = 0.0
    lose: float = 0.0
    engine: float = 0.0
    """An engine dies, hangs, restarts as something else, or the store under it fails."""
    message: float = 0.0
    """A message is lost, doubled, late, or refused."""


@dataclass(slots=True)
class Faults:
    random: Random
    rates: Rates
    now_s: Callable[[], float]
    say: Callable[[str], None]
    planned: Planned | None = None
    until_s: float = 0.0
    over: bool = False
    """Sooner than that, once there is nobody left to be hurt."""
    crashed: Counter[Step] = field(default_factory=Counter)
    """At which steps something was killed."""
    met: Counter[Step] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    let_loose: Callable[[Storm], None] = lambda _: None

    @property
    def active(self) -> bool:
        return not self.over and self.now_s() < self.until_s

    def latency_s(self) -> float:
        return self.random.random() * LATENCY_S

    def meet(self, who: Victim, names: Sequence[str], moment: Moment) -> Verdict:
        """Called at every step; kills or stops who is there, where that is due. One moment may be several steps."""
        steps, name = [step(one, moment) for one in names], names[0]
        for one in steps:
            self.met[one] += 1
        weight = WEIGHT[who.kind]
        planned = self._planned_now(steps)
        if planned is not None and planned.storm is not None:
            self.crashed.update(steps)
            self.let_loose(planned.storm)
        elif planned is not None or (self.active and self.random.random() < self.rates.crash * weight):
            self.crashed.update(steps)
            self.happened[f"kill {who.kind}"] += 1
            self.say(f"KILL {who.name} {moment} {name}")
            who.kill()
            return Verdict.DIE
        if not self.active:
            return Verdict.GO_ON
        if self.random.random() < self.rates.stop * weight:
            who.stopped_until_s = self.now_s() + self.random.random() * LONGEST_STOP_S
            self.happened[f"stop {who.kind}"] += 1
            self.say(f"STOP {who.name} until {who.stopped_until_s:.2f} {moment} {name}")
        elif self.random.random() < self.rates.lose * weight:
            self.happened["lose"] += 1
            self.say(f"LOSE the connection of {who.name} {moment} {name}")
            return Verdict.LOSE
        return Verdict.GO_ON

    def strikes(self, rate: float, what: str, among: Sequence[str]) -> str | None:
        """One of them, where it is time for one."""
        if not self.active or self.random.random() >= rate:
            return None
        chosen = self.random.choice(among)
        self.happened[f"{what} {chosen}"] += 1
        return chosen

    def _planned_now(self, steps: Sequence[Step]) -> Planned | None:
        if self.planned is None or self.planned.step not in steps:
            return None
        return self.planned if self.met[self.planned.step] == self.planned.nth else None
