"""How likely the tokens of an answer were, for a client who asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    token: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    logprob: float
    top: tuple[Candidate, ...] = ()
    """The likeliest candidates in its place."""
