"""Damages bytes as disks, networks and people do, always into something else than they were."""

from collections.abc import Callable, Iterator
from random import Random


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    random = Random(seed)  # noqa: S311 no secret
    made = 0
    while made < count:
        mutant = data
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            mutant = random.choice(KINDS)(mutant, random)
        if mutant != data:
            made += 1
            yield mutant


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _overwrite(data: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(data) + 1), random.choice((1, 4, 8, 64))
    filler = random.choice((b"\0" * length, b"\xff" * length, random.randbytes(length)))
    return data[:at] + filler + data[at + length :]


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 9))) + data[at:]


def _delete(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 2, 9)) :]


def _move(data: bytes, random: Random) -> bytes:
    first, second = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[second:] + data[first:second] + data[:first]


def _repeat(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[max(at - 40, 0) : at] + data[at:]


def _noise(_data: bytes, random: Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 7, 8, 40, 500)))


KINDS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_flip, _flip, _flip),
    *(_overwrite, _truncate, _insert, _delete, _move, _repeat, _noise),
)
