"""Prompts of the tiny models: any ids of their vocabulary will do, as long as they repeat."""

import random


def prompt(seed: int | str, length: int = 200) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(3, 259) for i in range(length)]  # noqa: S311 no secret
