"""New ids of what is stored, by the clock and the randomness of this machine."""

from secrets import token_bytes
from time import time_ns

from service.domain.ids import RANDOM_BYTES, make_id

NS_PER_MS = 1_000_000


def new_id(prefix: str) -> str:
    return make_id(prefix, at_ms=time_ns() // NS_PER_MS, random=token_bytes(RANDOM_BYTES))
