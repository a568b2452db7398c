"""Which seeds of `make faults` CI runs: the first that do something to somebody which none before them did, of turns and of rebuilds."""

from collections.abc import Iterator
from itertools import count

from tests.faults.plan import DEEDS, OF_A_REBUILD, OF_A_TURN, Deed, Victim, of_seed

MANY = 30
ONCE = ("render", "generate")
"""What an engine is asked again only after something else went wrong."""


def _first_of_each(*, rebuild: bool) -> Iterator[int]:
    """Until everything was done to everybody that such a turn has to do with."""
    left: set[tuple[Victim, Deed]] = {
        (victim, deed) for victim in (OF_A_REBUILD if rebuild else OF_A_TURN) for deed in DEEDS[victim]
    }
    seeds = (seed for seed in count(1) if of_seed(seed).rebuild is rebuild)
    while left:
        seed = next(seeds)
        fault = of_seed(seed)
        if (fault.victim, fault.deed) in left and not (fault.site.step in ONCE and fault.site.number > 1):
            left.remove((fault.victim, fault.deed))
            yield seed


OF_REBUILDS = tuple(_first_of_each(rebuild=True))
_FIRST = tuple(_first_of_each(rebuild=False))
_MORE = (seed for seed in count(1) if not of_seed(seed).rebuild and seed not in _FIRST)
OF_TURNS = (*_FIRST, *(next(_MORE) for _ in range(MANY - len(OF_REBUILDS) - len(_FIRST))))
