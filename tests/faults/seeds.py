"""Which seeds of `make faults` CI runs: the first ones, of turns and of rebuilds, until all victims and deeds are among them."""

from itertools import count, islice

from tests.faults.plan import of_seed

MANY = 15
OF_TURNS = tuple(islice((seed for seed in count(1) if not of_seed(seed).rebuild), MANY))
OF_REBUILDS = tuple(islice((seed for seed in count(1) if of_seed(seed).rebuild), MANY))
