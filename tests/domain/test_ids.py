"""Ids begin with the time, and end with enough chance that nobody guesses one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from service.domain.ids import RANDOM_BYTES, make_id

TIMES = st.integers(0, 2**48 - 1)
CHANCES = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(at_ms=TIMES, random=CHANCES)
def test_an_id_is_its_prefix_and_32_hex_digits(at_ms: int, random: bytes) -> None:
    assert re.fullmatch(r"conv_[0-9a-f]{32}", make_id("conv_", at_ms=at_ms, random=random))


@given(earlier=TIMES, later=TIMES, first=CHANCES, second=CHANCES)
def test_ids_sort_by_the_time_that_they_were_made(
    earlier: int, later: int, first: bytes, second: bytes
) -> None:
    made = make_id("resp_", at_ms=earlier, random=first), make_id("resp_", at_ms=later, random=second)
    assert earlier == later or (made[0] < made[1]) == (earlier < later)


@given(at_ms=TIMES, first=CHANCES, second=CHANCES)
def test_every_bit_of_chance_is_in_an_id(at_ms: int, first: bytes, second: bytes) -> None:
    made = make_id("kv_", at_ms=at_ms, random=first), make_id("kv_", at_ms=at_ms, random=second)
    assert (made[0] == made[1]) == (first == second)


def test_there_are_eighty_bits_of_chance() -> None:
    assert RANDOM_BYTES * 8 == 80
