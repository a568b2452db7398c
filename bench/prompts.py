"""Token ids that mean nothing, the same in every run."""

import random

TURN = 16
"""Tokens that come after a history."""


def prompt(seed: object, length: int, vocabulary: int = 40_000) -> list[int]:
    source = random.Random(repr(seed))  # noqa: S311 no secret
    return [source.randrange(10, vocabulary) for _ in range(length)]
