"""How much of an answer to the canary is compared, and what the first difference is."""

import pytest

from service.domain.canary import (
    ELSEWHERE,
    TOKENS,
    Difference,
    Generation,
    compared_tokens,
    first_difference,
)
from service.domain.errors import InvalidInput

GOLDEN = Generation(prompt=(1, 2, 3), answer=tuple(range(100, 100 + TOKENS)))


def answered(*answer: int, prompt: tuple[int, ...] = GOLDEN.prompt) -> Generation:
    return Generation(prompt=prompt, answer=answer)


def test_the_same_answer_differs_in_nothing() -> None:
    assert first_difference(GOLDEN, GOLDEN, TOKENS) is None


def test_the_first_token_that_is_another_is_named() -> None:
    other = answered(*GOLDEN.answer[:5], 7, 8, *GOLDEN.answer[7:])
    found = first_difference(GOLDEN, other, TOKENS)
    assert found == Difference(part="answer", place=5, expected=105, got=7)
    assert str(found) == "token 5 of its answer is 7, and was 105"


def test_no_more_is_compared_than_was_asked_for() -> None:
    other = answered(*GOLDEN.answer[:5], 7)
    assert first_difference(GOLDEN, other, 5) is None
    assert first_difference(GOLDEN, other, 6) is not None


@pytest.mark.parametrize(("prompt", "place"), [((1, 9, 3), 1), ((1, 2), 2), ((1, 2, 3, 4), 3)])
def test_a_prompt_that_is_another_differs_however_little_is_compared(
    prompt: tuple[int, ...], place: int
) -> None:
    found = first_difference(GOLDEN, answered(*GOLDEN.answer, prompt=prompt), 1)
    assert found is not None
    assert (found.part, found.place) == ("prompt", place)


def test_an_answer_that_ends_early_differs_where_it_ends() -> None:
    found = first_difference(GOLDEN, answered(*GOLDEN.answer[:3]), TOKENS)
    assert found == Difference(part="answer", place=3, expected=103, got=None)


@pytest.mark.parametrize(
    ("given", "dtype", "compared"),
    [
        (None, "float32", TOKENS),
        (None, "bfloat16", ELSEWHERE),
        ("exact", "bfloat16", TOKENS),
        ("prefix:1", "float32", 1),
        ("prefix:16", "float32", 16),
        ("off", "float32", None),
    ],
)
def test_an_operator_says_how_strict_it_is_and_else_the_precision_does(
    given: str | None, dtype: str, compared: int | None
) -> None:
    assert compared_tokens(given, dtype) == compared


@pytest.mark.parametrize(
    "given", ["", "on", "prefix", "prefix:", "prefix:0", "prefix:17", "prefix:-1", "exact "]
)
def test_what_means_nothing_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="off, exact, or prefix:N"):
        compared_tokens(given, "float32")
