"""What a seed breaks: who, how, and at which step of a turn or of a rebuild. The seed says what is tried; machines say when."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Victim(StrEnum):
    API = "api"
    WORKER = "worker"
    """Its main process, and with it the whole tree."""
    CHILD = "child"
    """The process of its pool."""
    ENGINE = "engine"
    POSTGRES = "postgres"
    BACKEND = "backend"
    """Of PostgreSQL: the session that is being used."""
    BROKER = "broker"


class Deed(StrEnum):
    KILL = "kill"
    STOP = "stop"
    """For a while, that may be longer than all leases."""
    EXCHANGE = "exchange"
    """Killed, and another engine of other weights answers at its address."""
    FORGET = "forget"
    """All messages are lost."""
    DOUBLE = "double"
    """Each rebuild is rung for again, several times."""
    SLOW = "slow"
    """The database says nothing for a while."""
    CUT = "cut"
    """The connection, whatever was under way on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`where` is api or worker: the nth message between it and PostgreSQL. Or engine: the nth of its steps of this name."""

    where: str
    step: str
    number: int

    def __str__(self) -> str:
        return f"{self.where} {self.step} {self.number}".replace("  ", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    victim: Victim
    deed: Deed
    site: Site
    after: bool
    """Of a message: it has passed already."""
    for_s: float
    rebuild: bool
    """Whether the turn changes its revision, and its history is rebuilt first."""
    streamed: bool

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.deed} {self.victim} {when} {self.site}{' of a rebuild' if self.rebuild else ''}"


ENGINE_STEPS = ("render", "generate", "word", "publish", "published", "attempts")
DEEDS = {
    Victim.API: (Deed.KILL, Deed.KILL, Deed.STOP),
    Victim.WORKER: (Deed.KILL, Deed.STOP),
    Victim.CHILD: (Deed.KILL, Deed.STOP),
    Victim.ENGINE: (Deed.KILL, Deed.STOP, Deed.EXCHANGE),
    Victim.POSTGRES: (Deed.KILL, Deed.STOP, Deed.SLOW),
    Victim.BACKEND: (Deed.KILL, Deed.CUT),
    Victim.BROKER: (Deed.KILL, Deed.STOP, Deed.FORGET, Deed.DOUBLE),
}
OF_A_TURN = (Victim.API, Victim.ENGINE, Victim.POSTGRES, Victim.BACKEND)
OF_A_REBUILD = tuple(Victim)
LONGEST_STOP_S = 9.0
"""Beyond the leases of turns, rebuilds and engines, and the patience with a silent engine, in tests/faults/rig.py."""
MESSAGES = {"api": 150, "worker": 60}
"""About as many as there are; a number that is not reached breaks nothing, which is said."""


def of_seed(seed: int, *, rebuild: bool | None = None) -> Fault:
    random = Random(seed)  # noqa: S311 it must be the same each time
    rebuilding = random.random() < 0.5 if rebuild is None else rebuild
    victim = random.choice(OF_A_REBUILD if rebuilding else OF_A_TURN)
    deed = random.choice(DEEDS[victim])
    return Fault(
        victim=victim,
        deed=deed,
        site=_site(random, victim, rebuilding=rebuilding),
        after=random.random() < 0.5,
        for_s=0.3 + random.random() * LONGEST_STOP_S,
        rebuild=rebuilding,
        streamed=random.random() < 0.5,
    )


def _site(random: Random, victim: Victim, *, rebuilding: bool) -> Site:
    wheres = {
        Victim.BACKEND: ("api", "worker"),
        Victim.WORKER: ("worker", "engine"),
        Victim.CHILD: ("worker", "engine"),
    }.get(victim, ("api", "worker", "engine", "engine"))
    reached = [where for where in wheres if rebuilding or where != "worker"]
    where = random.choice(reached)
    if where == "engine":
        return Site(where=where, step=random.choice(ENGINE_STEPS), number=random.randint(1, 2))
    return Site(where=where, step="", number=random.randint(1, MESSAGES[where]))
