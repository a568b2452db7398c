"""Which seeds of `make faults` CI runs: the first that do what none before them did, each in one of two files that take about as long."""

from collections.abc import Iterator
from itertools import count

from tests.faults.plan import DEEDS, OF_A_TURN, Deed, Kind, Victim, of_seed

Pair = tuple[Victim, Deed]
EVERY = tuple((victim, deed) for victim in Victim for deed in DEEDS[victim])
SPLITS: tuple[Pair, ...] = (
    (Victim.ENGINE, Deed.KILL),
    (Victim.ENGINE, Deed.EXCHANGE),
    (Victim.ENGINE, Deed.STOP),
    (Victim.STORE, Deed.WIPE),
)
"""While one of the two engines stands still at its work."""


def _kinds() -> dict[Pair, Kind]:
    """Of the turn that each is done to: what needs no rebuild is done to few of them, which take longer."""
    in_turns = [pair for pair in EVERY if pair[0] in OF_A_TURN]
    rebuilds = {*in_turns[::7], *(set(EVERY) - set(in_turns))}
    return {pair: Kind.REBUILD if pair in rebuilds else Kind.TURN for pair in EVERY}


def _first_of_each() -> Iterator[int]:
    left = _kinds()
    for seed in count(1):
        if not left:
            return
        fault = of_seed(seed)
        pair = (fault.victim, fault.deed)
        if left.get(pair) is fault.kind:
            del left[pair]
            yield seed


def _first_splits() -> Iterator[int]:
    for pair in SPLITS:
        for seed in count(1):
            fault = of_seed(seed)
            wanted = fault.kind is Kind.SPLIT and fault.site.where == "engine"
            if wanted and (fault.victim, fault.deed) == pair:
                yield seed
                break


_ALL = tuple(_first_of_each())
OF_REBUILDS = tuple(seed for seed in _ALL if of_seed(seed).kind is Kind.REBUILD)
OF_TURNS = (*(seed for seed in _ALL if seed not in OF_REBUILDS), *_first_splits())
