"""A new id is of now, and no two are equal."""

import re
from time import time

from service.store.new_ids import new_id


def test_a_new_id_tells_when_it_was_made() -> None:
    before = time()
    made = new_id("msg_")
    assert re.fullmatch(r"msg_[0-9a-f]{32}", made)
    assert before - 1 < int(made.removeprefix("msg_")[:12], 16) / 1000 < time() + 1


def test_ids_of_the_same_moment_differ() -> None:
    made = [new_id("conv_") for _ in range(20_000)]
    assert len({one[-20:] for one in made}) == len(made)


def test_ids_of_different_moments_are_in_order() -> None:
    first = new_id("kv_")
    while (second := new_id("kv_"))[:15] == first[:15]:
        continue
    assert first < second
