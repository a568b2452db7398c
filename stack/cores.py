"""Which processors are ours: a container or `taskset` may leave us a few of the machine's."""

import os


def usable() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def all_usable() -> str:
    """As vLLM takes them: `0,1,4`."""
    return ",".join(map(str, usable()))
