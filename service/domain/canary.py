"""The canary: what an engine answers to fixed words before it may serve, held against what its revision answered first.

The digest says that an engine has a revision's bytes; the canary, that it computes with them what others of the revision do.
"""

from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar

from service.domain.artifact import BootId
from service.domain.errors import InvalidInput
from service.domain.revision import RevisionDigest

TOKENS = 16
"""Of the answer, greedy, whatever they say: also past the token that would end it."""
MESSAGES = (("user", "Count from one to ten, in words."),)
"""By role; how they become token ids is the text identity's, which is part of the revision. The answer leaves a model little choice.
Never changes: what is on record was answered to these."""
ELSEWHERE = 4
"""Tokens that are compared by default where engines do not compute in float32: those of other hardware may part sooner or later."""
EXACT_DTYPE = "float32"
PROMPT, ANSWER = "prompt", "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token that is another one. None where one of the two has no such token."""

    part: str
    """prompt or answer."""
    place: int
    expected: int | None
    got: int | None

    def __str__(self) -> str:
        expected, got = ("none" if token is None else str(token) for token in (self.expected, self.got))
        return f"token {self.place} of its {self.part} is {got}, and was {expected}"


def compared_tokens(given: str | None, compute_dtype: str) -> int | None:
    """How many tokens of the answer must be the same, by what an operator said: off, exact or prefix:N. None: no canary.

    Raises:
        InvalidInput.
    """
    if given is None:
        return TOKENS if compute_dtype == EXACT_DTYPE else ELSEWHERE
    if given in ("off", "exact"):
        return None if given == "off" else TOKENS
    found = fullmatch(r"prefix:([0-9]{1,3})", given)
    if found is None or not 1 <= int(found[1]) <= TOKENS:
        raise InvalidInput(f"'{given}' must be off, exact, or prefix:N with N from 1 to {TOKENS}.", "canary")
    return int(found[1])


def first_difference(golden: Generation, now: Generation, compared: int) -> Difference | None:
    """Args: compared: tokens of the answer, from its beginning. All of the prompt is."""
    return _differ(PROMPT, golden.prompt, now.prompt) or _differ(
        ANSWER, golden.answer[:compared], now.answer[:compared]
    )


def _differ(part: str, expected: tuple[int, ...], got: tuple[int, ...]) -> Difference | None:
    for place in range(max(len(expected), len(got))):
        theirs, ours = (tokens[place] if place < len(tokens) else None for tokens in (expected, got))
        if theirs != ours:
            return Difference(part=part, place=place, expected=theirs, got=ours)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecorded:
    """What the first engine of a revision answered: from here on others must answer it too."""

    name: ClassVar = "canary.recorded"
    revision: RevisionDigest
    boot: BootId
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFailed:
    """An engine that measured itself as the revision answered otherwise, and was not let in."""

    name: ClassVar = "canary.failed"
    revision: RevisionDigest
    boot: BootId
    address: str
    compared: int
    part: str
    place: int
    expected: int | None
    got: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryForgotten:
    """The next engine of the revision records what it answers anew."""

    name: ClassVar = "canary.forgotten"
    revision: RevisionDigest
    by: str
    reason: str
