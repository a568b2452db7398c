"""Damages bytes as disks, networks and people do, always into something else than they were."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any


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


def changed_documents(document: Any, count: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """As somebody writes them who knows the format and means harm: a copy with one value changed, and the first key of where."""
    random = Random(seed)  # noqa: S311 no secret
    places = list(_places(document))
    before = json.dumps(document)
    made = 0
    while made < count:
        copy = json.loads(before)
        place = random.choice(places)
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        random.choice(CHANGES)(inner, place[-1], random)
        if json.dumps(copy) != before:
            made += 1
            yield copy, place[0]


def _places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*place, key))


def _replace(inner: Any, key: Any, random: Random) -> None:
    inner[key] = random.choice(
        (
            None,
            True,
            0,
            1,
            -1,
            2**70,
            1.0,
            float("nan"),
            "",
            "0" * 64,
            "auto",
            "../x",
            [],
            {},
            [[]],
            random.randbytes(4).hex(),
        )
    )


def _alike(inner: Any, key: Any, random: Random) -> None:
    """The nearest other value of the same kind, or the same value of another kind."""
    value = inner[key]
    if isinstance(value, str) and value:
        at = random.randrange(len(value))
        inner[key] = value[:at] + random.choice("0123456789abcdef") + value[at + 1 :]
    elif isinstance(value, int):
        inner[key] = random.choice((value + 1, value - 1, float(value), str(value)))
    elif isinstance(value, list) and value:
        inner[key] = random.choice((value[:-1], value[1:], value[::-1], [*value, value[0]]))


def _remove(inner: Any, key: Any, random: Random) -> None:
    del inner[key]


def _add(inner: Any, key: Any, random: Random) -> None:
    if isinstance(inner, dict):
        inner[random.randbytes(2).hex()] = random.choice((None, 1, "x"))
    else:
        inner.append(random.choice(inner))


CHANGES: tuple[Callable[[Any, Any, Random], None], ...] = (_replace, _alike, _alike, _remove, _add)
