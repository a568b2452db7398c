"""What a seed breaks: who, how, and at which step of a turn, a rebuild or a split. The seed says what is tried; machines say when."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """Of the turn that the fault meets."""

    TURN = "turn"
    """Answered where the one before was."""
    REBUILD = "rebuild"
    """It changes its revision, and its history is rebuilt first."""
    SPLIT = "split"
    """It is long: one engine prefills it, and another answers."""


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
    STORE = "store"
    """Of KV."""
    API_ROAD = "road from api to postgres"
    WORKER_ROAD = "road from worker to postgres"
    ENGINE_ROAD = "road to an engine"


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
    RESTORE = "restore"
    """Killed, and started from an old copy of its data: new messages are lost, and old ones come again."""
    SLOW = "slow"
    """The database says nothing for a while; the store takes long for everything."""
    STALL = "stall"
    """What is committed is on the disk, and nobody is told or sees it for a while, as where a disk takes so long to say so."""
    DRAG = "drag"
    """Each COMMIT takes a tenth of a second longer."""
    CUT = "cut"
    """The connection, whatever was under way on it."""
    WIPE = "wipe"
    """All that is stored is gone."""
    MUTE = "mute"
    """What whoever asks sends does not arrive for a while."""
    DEAFEN = "deafen"
    """What is answered does not come back for a while."""
    LOSE = "lose"
    """Connections that are open lead nowhere, and neither end is told until a while later; new ones are as good as any."""


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
    kind: Kind
    streamed: bool

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.deed} {self.victim} {when} {self.site} of a {self.kind}"


ENGINE_STEPS = ("render", "generate", "word", "publish", "published", "attempts")
TWICE = {
    Kind.TURN: ("word",),
    Kind.REBUILD: ("generate", "word", "publish", "published", "attempts"),
    Kind.SPLIT: ("generate", "word", "publish", "published", "attempts"),
}
"""What is asked of engines again though nothing went wrong: of a split first of the one that prefills."""
ROAD = (Deed.MUTE, Deed.DEAFEN, Deed.LOSE)
DEEDS = {
    Victim.API: (Deed.KILL, Deed.STOP),
    Victim.WORKER: (Deed.KILL, Deed.STOP),
    Victim.CHILD: (Deed.KILL, Deed.STOP),
    Victim.ENGINE: (Deed.KILL, Deed.STOP, Deed.EXCHANGE),
    Victim.POSTGRES: (Deed.KILL, Deed.STOP, Deed.SLOW, Deed.STALL, Deed.DRAG),
    Victim.BACKEND: (Deed.KILL, Deed.CUT),
    Victim.BROKER: (Deed.KILL, Deed.STOP, Deed.FORGET, Deed.DOUBLE, Deed.RESTORE),
    Victim.STORE: (Deed.SLOW, Deed.WIPE),
    Victim.API_ROAD: ROAD,
    Victim.WORKER_ROAD: ROAD,
    Victim.ENGINE_ROAD: ROAD,
}
OF_A_TURN = (
    Victim.API,
    Victim.ENGINE,
    Victim.POSTGRES,
    Victim.BACKEND,
    Victim.STORE,
    Victim.API_ROAD,
    Victim.ENGINE_ROAD,
)
VICTIMS = {
    Kind.TURN: OF_A_TURN,
    Kind.REBUILD: tuple(Victim),
    Kind.SPLIT: (Victim.API, Victim.ENGINE, Victim.STORE, Victim.ENGINE_ROAD),
}
EVERYTHING = [(kind, victim, deed) for kind in Kind for victim in VICTIMS[kind] for deed in DEEDS[victim]]
Random(3).shuffle(EVERYTHING)  # noqa: S311 the same each time
"""So many seeds in a row do everything to everybody, of each kind of turn."""
LONGEST_STOP_S = 9.0
"""Beyond the leases of turns, rebuilds and engines, and the patience with a silent engine, in tests/faults/rig.py."""
MESSAGES = {"api": 150, "worker": 60}
"""About as many as there are; a number that is not reached breaks nothing, which is said."""
WHERE = {
    Victim.BACKEND: ("api", "worker"),
    Victim.WORKER: ("worker", "engine"),
    Victim.CHILD: ("worker", "engine"),
    Victim.WORKER_ROAD: ("worker", "engine"),
    Victim.ENGINE_ROAD: ("api", "engine", "engine"),
    Victim.STORE: ("api", "engine", "engine"),
}
ANYWHERE = ("api", "worker", "engine", "engine")


def of_seed(seed: int) -> Fault:
    random = Random(seed)  # noqa: S311 it must be the same each time
    kind, victim, deed = EVERYTHING[seed % len(EVERYTHING)]
    return Fault(
        victim=victim,
        deed=deed,
        site=_site(random, victim, kind),
        after=random.random() < 0.5,
        for_s=0.3 + random.random() * LONGEST_STOP_S,
        kind=kind,
        streamed=random.random() < 0.5,
    )


def _site(random: Random, victim: Victim, kind: Kind) -> Site:
    reached = [where for where in WHERE.get(victim, ANYWHERE) if kind is Kind.REBUILD or where != "worker"]
    where = random.choice(reached)
    if where == "engine":
        step = random.choice(ENGINE_STEPS)
        return Site(where=where, step=step, number=random.randint(1, 1 + (step in TWICE[kind])))
    return Site(where=where, step="", number=random.randint(1, MESSAGES[where]))
