"""How far a rebuild goes at a time: whole blocks, so that whoever takes it over goes on from what is published."""


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
