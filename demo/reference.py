"""Asks an engine directly, past the service: the cold prefill to compare with, and the unguarded control."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from service.domain.evidence import KvRequest

TIMEOUT_S = 120.0
CANDIDATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    tokens: tuple[int, ...]
    text: str
    first_logprobs: dict[str, float]
    """Of the most likely first tokens, by token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    address: str

    def generate(self, prompt: Sequence[int], *, max_tokens: int, kv: KvRequest | None = None) -> Answer:
        """Greedy. Raises: httpx.HTTPStatusError, with the engine's own words in the response."""
        body: dict[str, Any] = {
            "token_ids": list(prompt),
            "sampling_params": {"max_tokens": max_tokens, "temperature": 0, "logprobs": CANDIDATES},
            "output_mode": "text",
            "kv_transfer_params": kv.to_params() if kv else None,
        }
        answer = httpx.post(
            f"{self.address}/inference/v1/generate", json=body, timeout=TIMEOUT_S, trust_env=False
        )
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        return Answer(
            tokens=tuple(choice["token_ids"]),
            text=choice["text"],
            first_logprobs=by_token(first),
        )

    def render(self, messages: Sequence[dict[str, str]], *, covered: int, last_token: int) -> tuple[int, ...]:
        """The ids that follow a window which holds the first `covered` messages."""
        body = {"messages": list(messages), "carried": {"messages": covered, "last_token": last_token}}
        answer = httpx.post(f"{self.address}/everturn/render", json=body, timeout=TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
        document = answer.json()
        if document["mode"] != "delta":
            raise RuntimeError(f"the template was expected to append: {document['reason']}")
        return tuple(document["token_ids"])


def by_token(candidates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {entry["token"]: entry["logprob"] for entry in candidates}


def furthest(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Over a token's most likely candidates of both; infinite where they name other candidates."""
    if not one or one.keys() != other.keys():
        return float("inf")
    return max(abs(one[token] - other[token]) for token in one)
