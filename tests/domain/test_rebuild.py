"""Chunks of a rebuild: whole blocks, each further than the last, and the last one ends where the history does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.rebuild import next_boundary


def boundaries(total: int, chunk: int, block: int, done: int = 0) -> list[int]:
    found = []
    while done < total:
        done = next_boundary(done=done, total=total, chunk=chunk, block=block)
        found.append(done)
    return found


@given(
    total=st.integers(1, 20_000),
    chunk=st.integers(1, 4096),
    block=st.sampled_from([1, 4, 16, 32, 256]),
    done=st.integers(0, 20_000),
)
def test_every_chunk_ends_on_a_block_or_with_the_history(
    total: int, chunk: int, block: int, done: int
) -> None:
    end = next_boundary(done=done, total=total, chunk=chunk, block=block)
    assert end == total or end % block == 0
    assert end <= total or done > total


@given(total=st.integers(1, 20_000), chunk=st.integers(64, 4096), block=st.sampled_from([1, 16, 32]))
def test_no_chunk_is_longer_than_one_and_a_half(total: int, chunk: int, block: int) -> None:
    ends = boundaries(total, chunk, block)
    lengths = [end - begun for begun, end in zip([0, *ends], ends, strict=False)]
    assert ends[-1] == total
    assert all(0 < length <= chunk * 1.5 for length in lengths)


@pytest.mark.parametrize(
    ("total", "ends"),
    [
        (100, [100]),
        (2_048, [2_048]),
        (3_072, [3_072]),
        (3_073, [2_048, 3_073]),
        (6_000, [2_048, 4_096, 6_000]),
    ],
)
def test_what_is_hardly_longer_than_a_chunk_is_one(total: int, ends: list[int]) -> None:
    assert boundaries(total, 2_048, 32) == ends


def test_a_chunk_shorter_than_a_block_is_a_block() -> None:
    assert boundaries(100, 1, 32) == [32, 64, 100]


def test_what_was_done_to_within_a_block_is_gone_on_from_the_block() -> None:
    assert next_boundary(done=70, total=1_000, chunk=64, block=32) == 128
