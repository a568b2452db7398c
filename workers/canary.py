"""Asks an engine the canary before it serves: fixed words, rendered by itself, and its greedy answer to them."""

from secrets import token_hex
from typing import Any

import httpx

from service.domain.canary import MESSAGES, TOKENS, Generation
from service.domain.errors import EngineFailed, Unavailable

RENDER_PATH, GENERATE_PATH = "/everturn/render", "/inference/v1/generate"
TIMEOUT_S = 120.0
"""The first request may compile."""


def ask(
    http: httpx.Client, address: str, *, model: str | None = None, timeout_s: float = TIMEOUT_S
) -> Generation:
    """Reads and leaves no KV: neither of the store nor of the engine's own cache.

    Args: model: the adapter that it is to answer with, by its name; None for the base.

    Raises:
        Unavailable: it cannot be reached; worth trying again.
        EngineFailed: it has no answer.
    """
    messages = [{"role": role, "content": content} for role, content in MESSAGES]
    rendered = _post(http, address + RENDER_PATH, {"messages": messages, "carried": None}, timeout_s)
    prompt = _ids(rendered, "render")
    body = {
        "token_ids": list(prompt),
        "sampling_params": {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
        "return_token_ids": True,
        "stream": False,
        "cache_salt": token_hex(16),
    } | ({} if model is None else {"model": model})
    answered = _post(http, address + GENERATE_PATH, body, timeout_s)
    try:
        answer = _ids(answered["choices"][0], "answer")
    except (KeyError, IndexError, TypeError) as error:
        raise EngineFailed(f"the engine's answer to the canary cannot be read: {error!r}") from error
    if len(answer) != TOKENS:
        raise EngineFailed(f"the engine answered the canary with {len(answer)} tokens, not {TOKENS}")
    return Generation(prompt=prompt, answer=answer)


def _post(http: httpx.Client, url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        answer = http.post(url, json=body, timeout=timeout_s)
    except httpx.TransportError as error:
        raise Unavailable(f"the engine does not answer the canary: {error!r}") from error
    if not answer.is_success:
        raise EngineFailed(
            f"the engine has no answer to the canary ({answer.status_code}): {answer.text[:300]}. "
            "Mend that, or start it with --canary off"
        )
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise EngineFailed("the engine's answer to the canary is no JSON object")
    return document


def _ids(document: dict[str, Any], what: str) -> tuple[int, ...]:
    ids = document.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
        raise EngineFailed(f"the engine's {what} of the canary holds no token ids")
    return tuple(ids)
