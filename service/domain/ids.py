"""What an id is made of: the time first, so that what is new lies side by side in every index, and then chance."""

RANDOM_BYTES = 10
"""80 bits: of a million ids made in the same millisecond, two are equal once in a trillion times."""


def make_id(prefix: str, *, at_ms: int, random: bytes) -> str:
    """`prefix` and 32 hex digits: 12 of the milliseconds since 1970, and those of `random`.

    Whoever has it knows when it was made, and cannot guess another.
    """
    return f"{prefix}{at_ms:012x}{random.hex()}"
