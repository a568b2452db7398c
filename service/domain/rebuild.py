"""How far a rebuild goes at a time: whole blocks, so that whoever takes it over goes on from what is published."""

AT_ONCE_S = 1.0
"""Of a pace: what is prefilled in one go slows everybody down who shares the engine's processors for as long as it takes."""
MOST_PIECES = 64
"""Of a history: each is published, and names all blocks before it."""


def next_boundary(*, done: int, total: int, chunk: int, block: int) -> int:
    """Up to where the history is prefilled next, in tokens; `total` where too little would be left for a chunk of its own.

    Args:
        done: tokens whose KV is published.
        total: of the history.
        chunk: at a time, rounded down to whole blocks.
        block: of the engine's KV, in tokens.
    """
    step = max(chunk // block, 1) * block
    begun = done // block * block
    return begun + step if total - begun > step + step // 2 else total


def paced_chunk(*, chunk: int, total: int, tokens_per_s: int | None) -> int:
    """At a time where a pace is to be kept, in tokens: rather little by little than all at once and nothing for long."""
    if tokens_per_s is None:
        return chunk
    return min(chunk, max(int(tokens_per_s * AT_ONCE_S), -(-total // MOST_PIECES)))
